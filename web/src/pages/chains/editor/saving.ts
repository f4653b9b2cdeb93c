// Store the draft as a chain or a revision, and run what is stored.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useLocation, type useSearchParams } from "wouter";
import { client, dataOf } from "../../../api/client";
import type { ChainDetail } from "../../../api/schema";
import { draftKey, type Draft, type DraftStore } from "./draft";

/** Store the draft: as a new chain, or as a revision on top of the one that was opened. */
export function useSave(
  store: DraftStore,
  stored: ChainDetail | undefined,
  setStored: (stored: ChainDetail) => void,
  onDone: () => void,
) {
  const queries = useQueryClient();
  const [, navigate] = useLocation();
  const send = (body: never, etag: string | undefined): Promise<ChainDetail> => {
    if (!stored) return dataOf(client.POST("/api/v1/chains", { body }));
    const header = { "If-Match": `"${etag ?? store.base}"` };
    return dataOf(client.PUT("/api/v1/chains/{chain}", { params: { path: { chain: stored.id }, header }, body }));
  };
  return useMutation({
    mutationFn: async (etag: string | undefined): Promise<ChainDetail> => {
      const { draft } = store.get();
      const saved = await send(draft as never, etag);
      store.markSaved(saved.etag, draft);
      return saved;
    },
    onSuccess: (saved) => {
      onDone();
      void queries.invalidateQueries({ queryKey: ["chains"] });
      if (!stored) {
        store.moveTo(draftKey(saved.id));
        navigate(`/chains/${saved.id}/edit`, { replace: true });
      }
      setStored(saved);
    },
  });
}

interface RunRequest {
  stored: ChainDetail | undefined;
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
    mutationFn: async ({ stored, dirty, from, yes }: RunRequest) => {
      const chain = stored && !dirty ? stored : await save.mutateAsync(undefined);
      const started = await dataOf(
        client.POST("/api/v1/chains/{chain}/run", {
          params: { path: { chain: chain.id } },
          body: { revision: chain.revision, refresh_from: from ?? null, yes } as never,
        }),
      );
      return { chain, run: (started as { id: string }).id };
    },
    onSuccess: ({ chain, run }, { stored }) => {
      if (stored) setSearch({ run });
      else navigate(`/chains/${chain.id}/edit?run=${run}`, { replace: true });
    },
  });
}
