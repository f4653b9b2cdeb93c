// Results of nodes: sets of rows, adapters, reports, newest run first.

import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatBytes, formatNumber, formatTime, titleOfResult } from "../../components/format";
import { Empty, Loading, ProblemNote } from "../../components/notes";
import { Page, Section } from "../../components/page";
import type { ArtifactPort } from "../../components/rows";
import { Table } from "../../components/table";
import { OwnData } from "./own";

type Artifact = components["schemas"]["Artifact"];
const PORTS: ArtifactPort[] = [
  "documents",
  "sft",
  "preference",
  "labelled",
  "prompts",
  "text",
  "adapter",
  "model",
  "report",
];

/** Where a result is shown: its rows, or the page of an evaluation. */
export const hrefOf = (artifact: { run_id: string; node: string; port: string }): string =>
  artifact.port === "report"
    ? `/evaluations/${artifact.run_id}/${encodeURIComponent(artifact.node)}`
    : `/data/${artifact.run_id}/${encodeURIComponent(artifact.node)}/${artifact.port}`;

export default function DataPage() {
  const [search, setSearch] = useSearchParams();
  const port = PORTS.find((artifact) => artifact === search.get("kind"));
  const run = search.get("run") ?? "";
  const query = { limit: 50, ...(port && { port }), ...(run && { run }) };
  const artifacts = useInfiniteQuery({
    queryKey: ["artifacts", query],
    queryFn: ({ pageParam }) =>
      dataOf(
        client.GET("/api/v1/artifacts", { params: { query: { ...query, ...(pageParam && { cursor: pageParam }) } } }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next || undefined,
  });
  const choose = (name: string, value: string) =>
    setSearch((previous) => {
      const next = new URLSearchParams(previous);
      if (value) next.set(name, value);
      else next.delete(name);
      return next;
    });
  const rows = artifacts.data?.pages.flatMap((page) => page.artifacts) ?? [];
  return (
    <Page title="Data">
      <OwnData />
      <Section title="Results of runs">
        <form
          className="filters"
          role="search"
          onSubmit={(event) => {
            event.preventDefault();
            choose("run", String(new FormData(event.currentTarget).get("run") ?? "").trim());
          }}
        >
          <div>
            <label htmlFor="kind">Kind</label>
            <select id="kind" value={port ?? ""} onChange={(event) => choose("kind", event.target.value)}>
              <option value="">all kinds</option>
              {PORTS.map((artifact) => (
                <option key={artifact}>{artifact}</option>
              ))}
            </select>
          </div>
          <div>
            <label htmlFor="run">Run or job</label>
            <input key={run} id="run" name="run" type="search" defaultValue={run} maxLength={200} />
          </div>
          <button type="submit">Show</button>
        </form>
        {artifacts.error && <ProblemNote error={artifacts.error} onRetry={() => void artifacts.refetch()} />}
        {artifacts.isPending && <Loading />}
        {artifacts.data && rows.length === 0 && !artifacts.hasNextPage && (
          <Empty title={port || run ? "No such result" : "No results yet"}>
            <p>
              Run a chain: start from a template on <Link href="/chains">Chains</Link>. What its nodes leave is listed
              here, with every row that was dropped and why.
            </p>
          </Empty>
        )}
        {rows.length > 0 && <ArtifactTable rows={rows} />}
        {artifacts.hasNextPage && (
          <button type="button" aria-busy={artifacts.isFetchingNextPage} onClick={() => void artifacts.fetchNextPage()}>
            Older results
          </button>
        )}
      </Section>
    </Page>
  );
}

export function ArtifactTable({ rows, caption = "Results of runs" }: { rows: readonly Artifact[]; caption?: string }) {
  return (
    <Table
      cards
      caption={caption}
      rows={rows}
      rowKey={(row) => `${row.run_id}/${row.node}/${row.port}`}
      columns={[
        {
          title: "Result",
          cell: (row) =>
            row.available ? <Link href={hrefOf(row)}>{`${row.node}: ${row.port}`}</Link> : `${row.node}: ${row.port}`,
        },
        { title: "Rows", numeric: true, cell: (row) => formatNumber(row.rows) },
        { title: "Size", numeric: true, cell: (row) => (row.available ? formatBytes(row.bytes) : "") },
        {
          title: "Run",
          cell: (row) => (
            <Link href={`/jobs/${row.run_id}`}>{titleOfResult({ run_name: row.run_name, ended: row.ended })}</Link>
          ),
        },
        { title: "Ended", cell: (row) => formatTime(row.ended) },
        { title: "Note", cell: noteOf },
      ]}
    />
  );
}

function noteOf(artifact: Artifact): string {
  if (artifact.problem) return `cannot be read: ${artifact.problem}`;
  if (!artifact.available) return "removed";
  return artifact.reused ? "reused" : "";
}
