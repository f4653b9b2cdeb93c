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
  label: string;
  start: number;
  remedy: string;
}

export function ConnectionNote() {
  const outage = useOutage();
  const queries = useQueryClient();
  const previous = useRef(false);
  useEffect(() => {
    document.documentElement.toggleAttribute("data-disconnected", outage !== null);
    if (previous.current && outage === null) void queries.invalidateQueries();
    previous.current = outage !== null;
  }, [outage, queries]);
  return (
    <div aria-live="assertive">
      {outage && (
        <p className="banner">
          {outage.label} What you see is from {formatTime(outage.start)}; the page tries again every {LOOK_MS / 1000} s.{" "}
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
      label: "The service does not answer.",
      start: health.dataUpdatedAt / 1000,
      remedy: "Start it with trainyard up.",
    };
  }
  const remedy = "Jobs keep running; trainyard up starts it again.";
  if (index.data?.as_of != null) {
    return { label: "The Prefect server does not answer.", start: index.data.as_of, remedy };
  }
  // Without an index the jobs are unknown while Prefect is away.
  if (index.data?.problem) return { label: index.data.problem, start: index.data.time, remedy };
  return null;
}

/**
 * Load the whole page again when its reader goes to another one after an update of the service: files keep their names,
 * so that parts of two versions could meet. The page that is open stays: it may be a form that is half filled in.
 */
function useReloadAfterUpdate(version: string | undefined): void {
  const [location] = useLocation();
  const lastLoad = useRef({ version, location });
  useEffect(() => {
    const previous = lastLoad.current;
    lastLoad.current = { version: previous.version ?? version, location };
    if (previous.location !== location && previous.version && version && previous.version !== version) {
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
  time: number;
}

/** The refusal is data: as an error of a query without data it would be forgotten at each repetition, and every page
 * would read again each time, as if Prefect was back. */
async function askIndex(previous: IndexAnswer | undefined): Promise<IndexAnswer> {
  const time = Date.now() / 1000;
  try {
    const { as_of } = await dataOf(client.GET("/api/v1/jobs", { params: { query: { limit: 1 } } }));
    return { as_of, problem: "", time };
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 503) throw error;
    return { as_of: null, problem: error.summary, time: previous?.time ?? time };
  }
}
