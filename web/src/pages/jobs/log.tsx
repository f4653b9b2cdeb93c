// The logs of a job: the run's own from Prefect, and what each of its trainers prints, as it comes.

import { useMutation, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { client, dataOf, Problem } from "../../api/client";
import { useEventStream } from "../../api/streams";
import { LogView, type LogLine } from "../../components/logs";
import { ProblemNote } from "../../components/notes";

const RUN = "run";
const POLL_MS = 2000;
/** Bytes of one request: of a large log the end, then the part before on request. */
const FIRST_LINES = 500;
const PART_BYTES = 1 << 18;
/** What a page keeps of a log, so that its memory is bounded. */
const MOST_LINES = 50_000;
const MOST_CHARACTERS = 1 << 23;

interface JobLogProps {
  job: string;
  nodes: readonly string[];
  isEnded: boolean;
}

export function JobLog({ job, nodes, isEnded }: JobLogProps) {
  const [selectedSource, setSelectedSource] = useState("");
  const source = selectedSource || nodes.at(-1) || RUN;
  const picker = (
    <label>
      <span className="visually-hidden">Log of</span>
      <select value={source} onChange={(event) => setSelectedSource(event.target.value)}>
        {[RUN, ...nodes].map((node) => (
          <option key={node}>{node}</option>
        ))}
      </select>
    </label>
  );
  const parts = { job, source, isEnded, picker };
  return source === RUN ? <RunLog key={job} {...parts} /> : <TrainerLog key={`${job}/${source}`} {...parts} />;
}

interface PartProps {
  job: string;
  source: string;
  isEnded: boolean;
  picker: React.ReactNode;
}

/** A part of a log as it was read at once, and where it begins and ends in the file. */
interface Chunk {
  first: number;
  next: number;
  lines: LogLine[];
  characters: number;
}

const chunkOf = (first: number, next: number, texts: readonly string[]): Chunk => ({
  first,
  next,
  lines: texts.map((text) => ({ text })),
  characters: texts.reduce((sum, text) => sum + text.length, 0),
});

const isFull = (chunks: readonly Chunk[]) =>
  chunks.reduce((sum, chunk) => sum + chunk.lines.length, 0) > MOST_LINES ||
  chunks.reduce((sum, chunk) => sum + chunk.characters, 0) > MOST_CHARACTERS;

/** The newest chunks that fit; the oldest ones are read again by *Load earlier*. */
function keepNewest(chunks: Chunk[]): Chunk[] {
  let remainingChunks = chunks;
  while (remainingChunks.length > 1 && isFull(remainingChunks)) remainingChunks = remainingChunks.slice(1);
  return remainingChunks;
}

/** A part of a log before an offset, or at its end. */
async function readPart(job: string, source: string, range: { before: number } | { tail: number }): Promise<Chunk> {
  const query = { source, limit_bytes: PART_BYTES, ...range };
  const part = await dataOf(
    client.GET("/api/v1/jobs/{job}/logs", { params: { path: { job }, query: query as object } }),
  );
  const texts = part.lines.map(({ text }) => text);
  return chunkOf(part.first_offset?.[source] ?? 0, part.next_offset?.[source] ?? 0, texts);
}

/** A trainer's log: its end at once, then each line as it comes, and earlier lines on request. */
function TrainerLog({ job, source, isEnded, picker }: PartProps) {
  const [chunks, setChunks] = useState<Chunk[] | null>(null);
  // Asked until it is there once, also after an outage; the stream continues from its end.
  const newest = useQuery({
    queryKey: ["log", job, source, "newest"],
    queryFn: () => readPart(job, source, { tail: FIRST_LINES }),
    enabled: chunks === null,
    refetchInterval: ({ state }) => (state.error instanceof Problem && state.error.isOutage ? POLL_MS : false),
    gcTime: 0,
  });
  if (chunks === null && newest.data) setChunks([newest.data]); // what is read again later is in the stream
  const earlier = useMutation({
    mutationFn: (offset: number) => readPart(job, source, { before: offset }),
    onSuccess: (chunk) =>
      setChunks((previous) => (previous?.[0]?.first === chunk.next ? [chunk, ...previous] : previous)),
  });
  const range = `/jobs/${encodeURIComponent(job)}/logs?source=${encodeURIComponent(source)}`;
  const state = useEventStream(
    chunks === null ? "" : `${range}#${isEnded ? "over" : "live"}`,
    {
      lines: (event: { lines: string[] }, id: string) => {
        // The id of an event is `source=offset.inode`: where its last line ends.
        const end = Number(/=(\d+)\.\d+$/.exec(id)?.[1] ?? NaN);
        setChunks((previous) => {
          const start = previous?.at(-1)?.next ?? 0;
          const isNew = end < start; // the file was cut or replaced: it begins again
          const chunk = chunkOf(isNew ? 0 : start, end, event.lines);
          return keepNewest(isNew ? [chunk] : [...(previous ?? []), chunk]);
        });
      },
      end: () => undefined,
    },
    () => `${range}&offset=${chunks?.at(-1)?.next ?? 0}`,
  );
  const lines = useMemo(() => (chunks ?? []).flatMap((chunk) => chunk.lines), [chunks]);
  const first = chunks?.[0]?.first ?? 0;
  return (
    <>
      {chunks === null && newest.error && <ProblemNote error={newest.error} onRetry={() => void newest.refetch()} />}
      {earlier.error && <ProblemNote error={earlier.error} />}
      <LogView
        lines={lines}
        state={chunks === null ? "loading" : state}
        fileName={`${job}-${source}.log`}
        earlier={
          first > 0
            ? {
                bytes: first,
                isFull: isFull(chunks ?? []),
                isLoading: earlier.isPending,
                onLoad: () => earlier.mutate(first),
              }
            : undefined
        }
      >
        {picker}
      </LogView>
    </>
  );
}

/** The run's own log: Prefect has no stream of it, so new lines are polled. */
function RunLog({ job, isEnded, picker }: PartProps) {
  const log = useQuery({
    queryKey: ["log", job, isEnded],
    queryFn: async () => {
      const lines: LogLine[] = [];
      for (let offset = 0; ;) {
        const query = { source: RUN, offset };
        const part = await dataOf(
          client.GET("/api/v1/jobs/{job}/logs", { params: { path: { job }, query: query as object } }),
        );
        lines.push(...part.lines.map(({ text, level }) => ({ text, level: level ?? 20 })));
        const next = part.next_offset?.[RUN] ?? offset;
        if (next === offset || lines.length >= MOST_LINES) return lines;
        offset = next;
      }
    },
    refetchInterval: isEnded ? false : POLL_MS,
  });
  return (
    <>
      {log.error && <ProblemNote error={log.error} onRetry={() => void log.refetch()} />}
      <LogView lines={log.data ?? []} state={isEnded ? "ended" : "live"} fileName={`${job}-run.log`}>
        {picker}
      </LogView>
    </>
  );
}
