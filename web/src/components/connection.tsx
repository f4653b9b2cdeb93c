// Whether the service answers, and whether the Prefect server behind it does. While one of them is away every page says
// so, since when, and what it shows is marked as old; when it is back, every page reads again.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { useLocation } from "wouter";
import { client, dataOf, fetchOrThrow, Problem } from "../api/client";
import type { ServiceHealth } from "../api/schema";
import { formatTime } from "./format";

const LOOK_MS = 3000;

/** Why what a page shows may be old, and since when; null while everything answers. */
interface Outage {
  what: string;
  since: number;
  remedy: string;
}

export function ConnectionNote() {
  const outage = useOutage();
  const queries = useQueryClient();
  const before = useRef(false);
  useEffect(() => {
    document.documentElement.toggleAttribute("data-disconnected", outage !== null);
    if (before.current && outage === null) void queries.invalidateQueries();
    before.current = outage !== null;
  }, [outage, queries]);
  return (
    <div aria-live="assertive">
      {outage && (
        <p className="banner">
          {outage.what} What you see is from {formatTime(outage.since)}; the page tries again every {LOOK_MS / 1000} s.{" "}
          {outage.remedy}
        </p>
      )}
    </div>
  );
}

/** Ask for the health of the service, and for one job: its list says how old it is while Prefect is away (`as_of`). */
function useOutage(): Outage | null {
  const health = useQuery({
    queryKey: ["health"],
    queryFn: async (): Promise<ServiceHealth> => (await fetchOrThrow(new Request("/health"))).json(),
    refetchInterval: LOOK_MS,
    refetchIntervalInBackground: true,
    retry: false,
  });
  const queries = useQueryClient();
  const index = useQuery({
    queryKey: INDEX,
    queryFn: () => askIndex(queries.getQueryData<IndexAnswer>(INDEX)),
    refetchInterval: LOOK_MS,
    retry: false,
    enabled: !health.isError,
  });
  useReloadAfterUpdate(health.data?.version);
  if (health.isError) {
    return {
      what: "The service does not answer.",
      since: health.dataUpdatedAt / 1000,
      remedy: "Start it with trainyard up.",
    };
  }
  const remedy = "Jobs keep running; trainyard up starts it again.";
  if (index.data?.as_of != null) {
    return { what: "The Prefect server does not answer.", since: index.data.as_of, remedy };
  }
  // Without an index the jobs are unknown while Prefect is away.
  if (index.data?.problem) return { what: index.data.problem, since: index.data.at, remedy };
  return null;
}

/**
 * Load the whole page again when its reader goes to another one after an update of the service: files keep their names,
 * so that parts of two versions could meet. The page that is open stays: it may be a form that is half filled in.
 */
function useReloadAfterUpdate(version: string | undefined): void {
  const [location] = useLocation();
  const loaded = useRef({ version, location });
  useEffect(() => {
    const before = loaded.current;
    loaded.current = { version: before.version ?? version, location };
    if (before.location !== location && before.version && version && before.version !== version) {
      window.location.reload();
    }
  }, [version, location]);
}

const INDEX = ["health", "jobs"];

interface IndexAnswer {
  as_of: number | null;
  /** What a refusal says of a Prefect server that is away; "" where there is an index. */
  problem: string;
  /** When there last was an index; for a page that never saw one, when it first asked (Unix seconds). */
  at: number;
}

/** The refusal is data: as an error of a query without data it would be forgotten at each repetition, and every page
 * would read again each time, as if Prefect was back. */
async function askIndex(before: IndexAnswer | undefined): Promise<IndexAnswer> {
  const at = Date.now() / 1000;
  try {
    const { as_of } = await dataOf(client.GET("/api/v1/jobs", { params: { query: { limit: 1 } } }));
    return { as_of, problem: "", at };
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 503) throw error;
    return { as_of: null, problem: error.summary, at: before?.at ?? at };
  }
}
