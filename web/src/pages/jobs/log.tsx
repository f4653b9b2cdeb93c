// The logs of a job: the run's own from Prefect, and what each of its trainers prints, as it comes.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import { useEventStream } from "../../api/streams";
import { LogView, type LogLine } from "../../components/logs";
import { ProblemNote } from "../../components/notes";

const RUN = "run";
const POLL_MS = 2000;
/** Lines that are kept of a log that grows; the whole log is a download of the API. */
const MOST_LINES = 50_000;

interface JobLogProps {
  job: string;
  nodes: readonly string[];
  over: boolean;
}

export function JobLog({ job, nodes, over }: JobLogProps) {
  const [chosen, setChosen] = useState("");
  const source = chosen || nodes.at(-1) || RUN;
  const picker = (
    <label>
      <span className="visually-hidden">Log of</span>
      <select value={source} onChange={(event) => setChosen(event.target.value)}>
        {[RUN, ...nodes].map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </label>
  );
  const parts = { job, source, over, picker };
  return source === RUN ? <RunLog key={job} {...parts} /> : <TrainerLog key={`${job}/${source}`} {...parts} />;
}

interface PartProps {
  job: string;
  source: string;
  over: boolean;
  picker: React.ReactNode;
}

function TrainerLog({ job, source, over, picker }: PartProps) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const place = `/jobs/${encodeURIComponent(job)}/logs?source=${encodeURIComponent(source)}`;
  const state = useEventStream(`${place}#${over ? "over" : "live"}`, {
    lines: (given: { lines: string[] }) =>
      setLines((before) => [...before, ...given.lines.map((text) => ({ text }))].slice(-MOST_LINES)),
    end: () => undefined,
  });
  return (
    <LogView lines={lines} state={state} fileName={`${job}-${source}.log`}>
      {picker}
    </LogView>
  );
}

/** The run's own log: Prefect has no stream of it, so that new lines are asked for. */
function RunLog({ job, over, picker }: PartProps) {
  const log = useQuery({
    queryKey: ["log", job, over],
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
    refetchInterval: over ? false : POLL_MS,
  });
  return (
    <>
      {log.error && <ProblemNote error={log.error} onRetry={() => void log.refetch()} />}
      <LogView lines={log.data ?? []} state={over ? "ended" : "live"} fileName={`${job}-run.log`}>
        {picker}
      </LogView>
    </>
  );
}
