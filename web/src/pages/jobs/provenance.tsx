// Provenance of a job's results: its data, the result of each node, and its training.

import { useMutation, useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { JobDetail, Provenance as Provenances } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { saveText } from "../../components/download";
import { formatBytes, formatNumber } from "../../components/format";
import { Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { isOver, REFRESH_MS } from "./queries";

export function Provenance({ job }: { job: JobDetail }) {
  const query = useQuery({
    queryKey: ["provenance", job.id, job.state],
    queryFn: () => dataOf(client.GET("/api/v1/jobs/{job}/provenance", { params: { path: { job: job.id } } })),
    refetchInterval: isOver(job.state) ? false : 2 * REFRESH_MS,
  });
  return (
    <Section title="Provenance">
      <Queried query={query}>
        {(data) => (data.digest ? <Origins provenance={data} /> : <p className="quiet">The job has not begun.</p>)}
      </Queried>
      {query.data?.digest && <ReportButton job={job} />}
    </Section>
  );
}

/** Saves the page about the run: data, tokens, evaluation, cost and proof in one file that asks nothing of a server. */
function ReportButton({ job }: { job: JobDetail }) {
  const report = useMutation({
    mutationFn: () => dataOf(client.GET("/api/v1/runs/{run}/report", { params: { path: { run: job.run_id } } })),
    onSuccess: (page) => saveText(`report-${page.run.slice(0, 8)}.html`, page.html, "text/html"),
  });
  return (
    <div className="actions">
      <ActionButton mutation={report} variables={undefined} busy="Writing the report">
        Save the report
      </ActionButton>
    </div>
  );
}

const digest = (sha256: string | undefined) =>
  sha256 ? <code title={sha256}>{sha256.slice(0, 12)}</code> : <span className="quiet">no longer stored</span>;

function Origins({ provenance }: { provenance: Provenances }) {
  return (
    <>
      <Facts
        facts={[
          ["Chain", provenance.chain],
          ["Digest of the resolved chain", <code>{provenance.digest}</code>],
        ]}
      />
      {provenance.data.length > 0 && (
        <Table
          cards
          caption="Data that was read"
          rows={provenance.data}
          rowKey={(_, index) => index}
          columns={[
            { title: "Source", cell: (row) => row.source },
            { title: "Format", cell: (row) => row.format ?? "" },
            { title: "Rows", numeric: true, cell: (row) => formatNumber(row.rows) },
            { title: "Licence", cell: (row) => row.license || "not stated" },
            { title: "SHA-256", cell: (row) => digest(row.sha256) },
          ]}
        />
      )}
      {provenance.results.length > 0 && (
        <Table
          cards
          caption="Results of the nodes"
          rows={provenance.results}
          rowKey={(result) => `${result.node}/${result.port}`}
          columns={[
            { title: "Node", cell: (result) => result.node },
            { title: "Result", cell: (result) => result.port },
            { title: "Made from", cell: (result) => result.needs.join(", ") },
            { title: "Rows", numeric: true, cell: (result) => formatNumber(result.rows) },
            { title: "Size", numeric: true, cell: (result) => formatBytes(result.bytes) },
            { title: "SHA-256", cell: (result) => digest(result.sha256) },
            { title: "Content key", cell: (result) => <code title={result.key}>{result.key.slice(0, 12)}</code> },
            { title: "Made by", cell: (result) => (result.reused ? "an earlier run" : "this run") },
          ]}
        />
      )}
      {provenance.trainings.map((training) => (
        <Training key={training.node} training={training} />
      ))}
    </>
  );
}

function Training({ training }: { training: Provenances["trainings"][number] }) {
  const counts = (counters: Record<string, number> | undefined) =>
    Object.entries(counters ?? {})
      .map(([name, count]) => `${formatNumber(count)} ${name}`)
      .join(", ");
  const lineage = training.lineage ?? [];
  return (
    <section aria-label={`Training of ${training.node}`}>
      <h3>{training.node}</h3>
      {!training.ended && (
        <p className="quiet">It has left no result; how it was carried out is recorded at its end.</p>
      )}
      <Facts
        facts={[
          ["Tokens", counts(training.tokens)],
          ["Rows", counts(training.rows)],
          ["Seed", formatNumber(training.seed)],
          ...Object.entries(training.words ?? {}).map(
            ([name, value]) => [titleOf(name), name.endsWith("sha256") ? <code>{value}</code> : value] as const,
          ),
          ["Registered as", (training.registered ?? []).join(", ")],
          [
            "Versions",
            Object.entries(training.versions ?? {})
              .map(([name, version]) => `${name} ${version}`)
              .join(", "),
          ],
        ]}
      />
      {lineage.length > 0 && (
        <Table
          cards
          caption={`Lineage of ${training.node}`}
          rows={lineage}
          rowKey={(_, index) => index}
          columns={[
            { title: "From", cell: (origin) => (origin.stage ? "training" : "base") },
            { title: "Stage", cell: (origin) => origin.stage ?? "" },
            { title: "Method", cell: (origin) => origin.method ?? "" },
            { title: "SHA-256", cell: (origin) => digest(origin.sha256) },
          ]}
        />
      )}
    </section>
  );
}

/** `base_sha256` is `Base SHA-256`. */
const titleOf = (name: string) => {
  const text = name.replace("sha256", "SHA-256").replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
};
