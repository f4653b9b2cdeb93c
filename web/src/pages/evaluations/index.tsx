// Reports of evaluators: is the adapter better than what it is compared with.

import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatTime, titleOfResult } from "../../components/format";
import { Interval } from "../../components/interval";
import { Empty, Loading, ProblemNote } from "../../components/notes";
import { Page, Section } from "../../components/page";
import { Table } from "../../components/table";
import { Verdict } from "./verdict";

export default function EvaluationsPage() {
  const [search] = useSearchParams();
  const run = search.get("run") ?? "";
  const query = { limit: 50, ...(run && { run }) };
  const list = useInfiniteQuery({
    queryKey: ["evaluations", query],
    queryFn: ({ pageParam }) =>
      dataOf(
        client.GET("/api/v1/evaluations", { params: { query: { ...query, ...(pageParam && { cursor: pageParam }) } } }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next || undefined,
  });
  const pages = list.data?.pages.flatMap((page) => page.evaluations) ?? [];
  const rows = pages.toSorted((page, another) => another.ended - page.ended); // runs that overlap end in another order
  return (
    <Page title="Evaluations">
      <Section title={run ? `Evaluations of the run ${run.slice(0, 8)}` : "Evaluations of runs"}>
        {list.error && <ProblemNote error={list.error} onRetry={() => void list.refetch()} />}
        {list.isPending && <Loading />}
        {list.data && rows.length === 0 && !list.hasNextPage && (
          <Empty title="No evaluations yet">
            <p>
              Put an evaluator after the trainer of a chain: it compares the adapter with its base on rows that were
              held out. The template qa-pipeline on <Link href="/chains">Chains</Link> has one.
            </p>
          </Empty>
        )}
        {rows.length > 0 && <EvaluationTable rows={rows} />}
        {list.hasNextPage && (
          <button type="button" aria-busy={list.isFetchingNextPage} onClick={() => void list.fetchNextPage()}>
            Older evaluations
          </button>
        )}
      </Section>
    </Page>
  );
}

type Line = components["schemas"]["EvaluationVerdict"];

export function EvaluationTable({ rows }: { rows: readonly Line[] }) {
  return (
    <Table
      cards
      caption="Evaluations"
      rows={rows}
      rowKey={(row) => `${row.run_id}/${row.node}`}
      columns={[
        {
          title: "Evaluation",
          cell: (row) => {
            const title = titleOfResult(row);
            return row.available ? (
              <Link href={`/evaluations/${row.run_id}/${encodeURIComponent(row.node)}`}>{title}</Link>
            ) : (
              title
            );
          },
        },
        {
          title: "Verdict",
          cell: (row) => <Verdict better={row.better} cautions={row.cautions} fewRows={row.few_rows} />,
        },
        { title: "Decides", cell: (row) => row.primary },
        { title: "Improvement", cell: (row) => row.improvement && <Interval value={row.improvement} /> },
        { title: "Ended", cell: (row) => formatTime(row.ended) },
      ]}
    />
  );
}
