// Queries and mutations of the job pages.

import { useRef } from "react";
import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { Job, JobState } from "../../api/schema";
import { useEventStream, type StreamState } from "../../api/streams";
import { formatNumber } from "../../components/format";

export const REFRESH_MS = 3000;
export const PAGE_SIZE = 50;

export interface JobFilter {
  state?: JobState;
  stage?: string;
  backend?: string;
  text?: string;
  group?: string;
  cursor?: string;
}

/** A page of jobs, read again every few seconds. */
export const useJobs = (filter: JobFilter) =>
  useQuery({
    queryKey: ["jobs", filter],
    queryFn: () =>
      dataOf(client.GET("/api/v1/jobs", { params: { query: { ...(filter as object), limit: PAGE_SIZE } } })),
    refetchInterval: REFRESH_MS,
    placeholderData: keepPreviousData,
  });

const detailOf = (job: string) => ({
  queryKey: ["job", job],
  queryFn: () => dataOf(client.GET("/api/v1/jobs/{job}", { params: { path: { job } } })),
});

/** One job, read again when its stream says that it has changed. While it runs its step changes, which no event says. */
export function useJob(job: string) {
  return useQuery({
    ...detailOf(job),
    refetchInterval: (query) => (isOver(query.state.data?.state) ? 10 * REFRESH_MS : REFRESH_MS),
  });
}

export const useJobDetails = (jobs: readonly string[]) => jobs.map(detailOf);

const OVER: readonly string[] = ["completed", "failed", "canceled"];

/** Whether a job has ended, so that its streams end, too; a paused one has not. */
export const isOver = (state: string | undefined) => OVER.includes(state ?? "");

/** Follow the state of a job; `over` opens the stream again after a resume. */
export function useJobEvents(job: string, isEnded: boolean): StreamState {
  const queries = useQueryClient();
  const state = useRef("");
  const read = (event: { state: string }) => {
    void queries.invalidateQueries({ queryKey: ["job", job] });
    // What is read rarely, or not at all after the end, changes with the state: a pause writes a checkpoint.
    if (event.state !== state.current) {
      state.current = event.state;
      for (const key of ["checkpoints", "samples"]) void queries.invalidateQueries({ queryKey: [key, job] });
    }
  };
  return useEventStream(`/jobs/${encodeURIComponent(job)}#${isEnded ? "over" : "live"}`, { job: read, end: read });
}

export type JobVerb = "pause" | "resume" | "cancel";

/** What can be asked of a job in a state. */
export function verbsOf(state: JobState): JobVerb[] {
  if (state === "running") return ["pause", "cancel"];
  if (state === "pending") return ["cancel"];
  if (state === "paused") return ["resume", "cancel"];
  return state === "failed" || state === "canceled" ? ["resume"] : [];
}

/** Pause, resume or cancel a job. The answer comes at once; the state follows in the job's stream. */
export function useJobAction(job: string, verb: JobVerb) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async () => {
      const params = { path: { job } };
      // `watch` is for who sits at the machine: over a network it is refused, also where it is false.
      if (verb === "resume") return dataOf(client.POST("/api/v1/jobs/{job}/resume", { params, body: {} as never }));
      const path = verb === "pause" ? "/api/v1/jobs/{job}/pause" : "/api/v1/jobs/{job}/cancel";
      return dataOf(client.POST(path, { params, body: { wait: false } }));
    },
    onSettled: async () => {
      await queries.invalidateQueries({ queryKey: ["job", job] });
      await queries.invalidateQueries({ queryKey: ["jobs"] });
    },
  });
}

/** Start a new job with the parameters of one that has ended; a completed one is trained again. */
export function useRetry(job: Pick<Job, "id" | "state">, onStarted: (id: string) => void) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: () =>
      dataOf(
        client.POST("/api/v1/jobs/{job}/retry", {
          params: { path: { job: job.id } },
          body: { refresh: job.state === "completed" } as never,
        }),
      ),
    onSuccess: (startedJob) => onStarted(startedJob.id),
    onSettled: () => queries.invalidateQueries({ queryKey: ["jobs"] }),
  });
}

/** `control: `, where the trainer of a job's step and loss is another than the usual one. */
export const trainerOf = (job: Pick<Job, "node">) => (job.node && job.node !== "trainer" ? `${job.node}: ` : "");

/** `120 of 4,000`; empty for a job whose trainings were reused. */
export const stepsOf = (job: Pick<Job, "step" | "total_steps">) =>
  job.total_steps
    ? `${formatNumber(job.step)} of ${formatNumber(job.total_steps)}`
    : job.step
      ? formatNumber(job.step)
      : "";
