// Store the draft as a chain or a revision, and run what is stored.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useLocation, type useSearchParams } from "wouter";
import { client, dataOf } from "../../../api/client";
import type { ChainDetail } from "../../../api/schema";
import { draftKey, type Draft, type DraftStore } from "./draft";

/** Store the draft: as a new chain, or as a revision on top of the one that was opened. */
export function useSave(
  store: DraftStore,
  storedChain: ChainDetail | undefined,
  setStored: (storedChain: ChainDetail) => void,
  onDone: () => void,
) {
  const queries = useQueryClient();
  const [, navigate] = useLocation();
  const send = (body: never, etag: string | undefined): Promise<ChainDetail> => {
    if (!storedChain) return dataOf(client.POST("/api/v1/chains", { body }));
    const header = { "If-Match": `"${etag ?? store.base}"` };
    return dataOf(client.PUT("/api/v1/chains/{chain}", { params: { path: { chain: storedChain.id }, header }, body }));
  };
  return useMutation({
    mutationFn: async (etag: string | undefined): Promise<ChainDetail> => {
      const { draft } = store.get();
      const savedChain = await send(draft as never, etag);
      store.markSaved(savedChain.etag, draft);
      return savedChain;
    },
    onSuccess: (savedChain) => {
      onDone();
      void queries.invalidateQueries({ queryKey: ["chains"] });
      if (!storedChain) {
        store.moveTo(draftKey(savedChain.id));
        navigate(`/chains/${savedChain.id}/edit`, { replace: true });
      }
      setStored(savedChain);
    },
  });
}

interface RunRequest {
  storedChain: ChainDetail | undefined;
  /** The draft that is run. */
  draft: Draft;
  dirty: boolean;
  from?: string;
  /** Whether a run on few rows is allowed. */
  yes: boolean;
}

export function useRun(setSearch: ReturnType<typeof useSearchParams>[1], save: ReturnType<typeof useSave>) {
  const [, navigate] = useLocation();
  return useMutation({
    mutationFn: async ({ storedChain, dirty, from, yes }: RunRequest) => {
      const chain = storedChain && !dirty ? storedChain : await save.mutateAsync(undefined);
      const startedRun = await dataOf(
        client.POST("/api/v1/chains/{chain}/run", {
          params: { path: { chain: chain.id } },
          body: { revision: chain.revision, refresh_from: from ?? null, yes } as never,
        }),
      );
      return { chain, run: (startedRun as { id: string }).id };
    },
    onSuccess: ({ chain, run }, { storedChain }) => {
      if (storedChain) setSearch({ run });
      else navigate(`/chains/${chain.id}/edit?run=${run}`, { replace: true });
    },
  });
}
