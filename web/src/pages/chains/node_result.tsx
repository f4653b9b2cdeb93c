// One node of a run: state, what it has left, and what it reported.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { NodeDetail } from "../../api/schema";
import { formatBytes, formatDuration, formatTime } from "../../components/format";
import { Queried } from "../../components/page";
import { StateBadge } from "../../components/state";
import { hrefOf } from "../data";
import { JobLog } from "../jobs/log";

const EVERY_MS = 1000;
const RUNNING = ["pending", "running"];

/** `isRunPage` leaves out what the page of the run has already: the link to it, and the log of its trainers. */
export function NodeResult({ run, node, isRunPage = false }: { run: string; node: string; isRunPage?: boolean }) {
  const detail = useQuery({
    queryKey: ["jobs", run, "nodes", node],
    queryFn: (): Promise<NodeDetail> =>
      dataOf(client.GET("/api/v1/jobs/{job}/nodes/{node}", { params: { path: { job: run, node } } })),
    refetchInterval: ({ state }) => (state.data && !RUNNING.includes(state.data.state) ? false : EVERY_MS),
    retry: false,
  });
  return (
    <section aria-label={`${node} in this run`}>
      <h3>In this run</h3>
      <Queried query={detail}>{(data) => <Result run={run} detail={data} isRunPage={isRunPage} />}</Queried>
    </section>
  );
}

function Result({ run, detail, isRunPage }: { run: string; detail: NodeDetail; isRunPage: boolean }) {
  const outputs = Object.entries(detail.outputs ?? {});
  return (
    <>
      <p aria-live="polite">
        <StateBadge state={detail.state} /> {detail.seconds > 0 && formatDuration(detail.seconds)} {detail.message}
      </p>
      {outputs.length > 0 && (
        <ul>
          {outputs.map(([port, output]) => (
            <li key={port}>
              <Link href={hrefOf({ run_id: run, node: detail.id, port })}>{port}</Link>:{" "}
              {output.rows != null && `${output.rows.toLocaleString("en-US")} rows, `}
              {formatBytes(output.bytes)} <code title={output.sha256}>{output.sha256.slice(0, 12)}</code>
            </li>
          ))}
        </ul>
      )}
      {!isRunPage && (
        <p>
          <Link href={`/jobs/${run}`}>{detail.trains ? "Curves and log of the run" : "The run"}</Link>
        </p>
      )}
      {detail.trains && !isRunPage && (
        <details>
          <summary>What its training prints</summary>
          <JobLog job={run} nodes={[detail.id]} isEnded={!RUNNING.includes(detail.state)} />
        </details>
      )}
      <details>
        <summary>Lines ({detail.lines.length})</summary>
        <div className="node-lines" role="log" aria-label={`Lines of ${detail.id}`} tabIndex={0}>
          {detail.lines.map((line, index) => (
            <div key={index} className={line.level >= 30 ? "wrong" : undefined}>
              <span className="quiet">{formatTime(line.time)}</span> {line.text}
            </div>
          ))}
        </div>
      </details>
    </>
  );
}
