// Queries of the editor: the palette, whether the draft would run, and where a link may lead.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { client, dataOf } from "../../../api/client";
import type { ExpandedChain, LinkAnswer, RunNodes } from "../../../api/schema";
import type { Draft } from "./draft";

/** How long a change waits for the next one before the draft is checked. */
const CHECK_AFTER_MS = 200;
const RUN_EVERY_MS = 1000;
const ENDED = ["completed", "failed", "canceled"];

export interface CheckReason {
  code: string;
  node: string | null;
  field: string;
  because: string;
  instead: string;
}

/** Write a draft, a template's call or a text out, with ids, links and ports. */
export const expand = (
  body: { target?: Record<string, unknown> | string; parameters?: Record<string, unknown>; text?: string },
  signal?: AbortSignal,
): Promise<ExpandedChain> => dataOf(client.POST("/api/v1/chains/expand", { body: body as never, signal }));

/** What the service says about the draft as it is now; the earlier answer while it is asked. `opened` is its answer for
 * the first draft, if that was just asked for. */
export function useCheck(draft: Draft, expansion: ExpandedChain | null) {
  const [first] = useState(() => ({ draft, at: Date.now() }));
  const [settledDraft, setSettledDraft] = useState(draft);
  useEffect(() => {
    const handle = window.setTimeout(() => setSettledDraft(draft), CHECK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [draft]);
  const query = useQuery({
    queryKey: ["expand", settledDraft],
    // The service ends the work of a request that is aborted: only the newest draft is checked.
    queryFn: ({ signal }) => expand({ target: settledDraft as unknown as Record<string, unknown> }, signal),
    initialData: settledDraft === first.draft ? (expansion ?? undefined) : undefined,
    initialDataUpdatedAt: first.at, // who comes back to the first draft later gets a new answer
    placeholderData: keepPreviousData,
    gcTime: 10_000,
  });
  return { ...query, isCurrent: settledDraft === draft && !query.isPlaceholderData && !query.isPending };
}

export const askLinks = async (draft: Draft, node: string): Promise<LinkAnswer[]> =>
  (await dataOf(client.POST("/api/v1/chains/links", { body: { target: draft as never, node } }))).links;

/** The nodes of a run, each second until it has ended. */
export const useRunNodes = (run: string) =>
  useQuery({
    queryKey: ["jobs", run, "nodes"],
    enabled: run !== "",
    queryFn: (): Promise<RunNodes> =>
      dataOf(client.GET("/api/v1/jobs/{job}/nodes", { params: { path: { job: run } } })),
    refetchInterval: ({ state }) => (state.data && ENDED.includes(state.data.state) ? false : RUN_EVERY_MS),
  });

/** Setting that is left out -> the value that a run takes for it, of one node: path below its config. */
export const defaultsOf = (expansion: ExpandedChain | undefined, node: string): Record<string, unknown> =>
  expansion?.nodes.find((entry) => entry.id === node)?.defaults ?? {};

/** The same for the parameters of a template, which have the names of the settings; what trainers differ in, for each. */
export function parameterDefaults(expansion: ExpandedChain | undefined, names: readonly string[]) {
  const defaults: Record<string, string> = {};
  for (const path of names) {
    const name = path.split(".").at(-1)!;
    const values = (expansion?.nodes ?? []).flatMap((node) =>
      Object.entries(node.defaults ?? {}).flatMap(([key, value]) =>
        key.split(".").at(-1) === name ? [{ node: node.id, value }] : [],
      ),
    );
    const texts = new Set(values.map((value) => String(value.value)));
    if (texts.size === 1) defaults[path] = [...texts][0]!;
    else if (texts.size > 1)
      defaults[path] = values.map((value) => `${String(value.value)} (${value.node})`).join(", ");
  }
  return defaults;
}

export const reasonsOf = (expansion: ExpandedChain | undefined): CheckReason[] =>
  (expansion?.check.reasons ?? []) as unknown as CheckReason[];
