// One night: phases against their budgets, corpora against their thresholds, trained adapters, failures.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatDuration, formatNumber, formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { Against, NightState } from ".";

/** A report as it is sent: with all parts. */
type Report = Required<components["schemas"]["NightReport"]>;

export default function NightPage({ tenant, night }: { tenant: string; night: string }) {
  const query = useQuery({
    queryKey: ["night", tenant, night],
    queryFn: () =>
      dataOf(client.GET("/api/v1/nightly/nights/{night}", { params: { path: { night }, query: { tenant } } })),
  });
  return (
    <Page title={`Night ${night}`} actions={<Link href="/nights">All nights</Link>}>
      <Queried query={query}>
        {({ report: nightReport, ...record }) => {
          const report = nightReport as Report | null;
          return (
            <>
              <Section title="What happened">
                <p>
                  <NightState state={record.state} />: {record.headline}
                </p>
                {record.next_steps.length > 0 && (
                  <ul>
                    {record.next_steps.map((line) => (
                      <li key={line}>{line}</li>
                    ))}
                  </ul>
                )}
                <Facts
                  facts={[
                    ["Tenant", record.tenant],
                    ["Began", formatTime(record.started)],
                    ["Took", formatDuration(record.seconds)],
                    ["Attempt", report && formatNumber(report.attempt)],
                  ]}
                />
              </Section>
              {report ? (
                <>
                  <Phases report={report} />
                  <Documents report={report} />
                  <Buckets report={report} />
                  <Trainings report={report} />
                </>
              ) : (
                <Empty title="No report yet">
                  <p>The night is running, or its process ended: trainyard nightly run continues it.</p>
                </Empty>
              )}
            </>
          );
        }}
      </Queried>
    </Page>
  );
}

function Phases({ report }: { report: Report }) {
  const { phase1, phase2 } = report;
  const rows: [string, number, number][] = [
    ["Boot and readiness", phase1.boot_s, 0],
    ["1: documents into the graph", phase1.extract_s, phase1.budget_s],
    ["Release of the device", phase1.release_s, 0],
    ["2: corpora into adapters", phase2.seconds, phase2.budget_s],
    ["The whole night", report.seconds, report.window_s],
  ];
  return (
    <Section title="Phases against their budgets">
      <Table
        caption="Phases"
        rows={rows}
        rowKey={([name]) => name}
        columns={[
          { title: "Phase", cell: ([name]) => name },
          {
            title: "Time of budget",
            cell: ([name, value, limit]) => <Against value={value} limit={limit} label={name} unit={formatDuration} />,
          },
        ]}
      />
    </Section>
  );
}

function Documents({ report }: { report: Report }) {
  const night = report.phase1;
  return (
    <Section title="Documents">
      <Facts
        facts={[
          ["Waiting", formatNumber(night.waiting)],
          ["Read into the graph", formatNumber(night.done)],
          ["Left for the next night", formatNumber(night.left)],
          ["Predicted", formatNumber(night.predicted)],
          ["New entities", formatNumber(night.new_entities)],
          ["Changed entities", formatNumber(night.changed_entities)],
          ["New relations", formatNumber(night.new_relations)],
          ["Device free afterwards", night.device_free ? "yes" : "no"],
        ]}
      />
      {night.quarantined.length > 0 && (
        <Table
          caption="Quarantined documents"
          rows={night.quarantined}
          rowKey={(document, index) => `${document.stream}/${document.name}/${index}`}
          columns={[
            { title: "Stream", cell: (document) => document.stream },
            { title: "Quarantined document", cell: (document) => document.name },
            { title: "Reason", cell: (document) => document.reason },
          ]}
        />
      )}
    </Section>
  );
}

function Buckets({ report }: { report: Report }) {
  const rows = report.phase2.buckets;
  return (
    <Section title="Corpora against their thresholds">
      {rows.length === 0 && <p>No corpus was counted. {report.phase2.note}</p>}
      {rows.length > 0 && (
        <Table
          caption="Corpora"
          rows={rows}
          rowKey={(row) => row.bucket}
          columns={[
            { title: "Corpus", cell: (row) => `${row.bucket} (${row.method})` },
            {
              title: "New of threshold",
              cell: (row) => <Against value={row.new} limit={row.threshold} label={row.bucket} unit={formatNumber} />,
            },
            { title: "Valid", numeric: true, cell: (row) => formatNumber(row.valid) },
            { title: "Invalid", numeric: true, cell: (row) => formatNumber(row.invalid) },
            { title: "Duplicates", numeric: true, cell: (row) => formatNumber(row.duplicates) },
            { title: "Marker or note", cell: (row) => row.marker || row.note || row.failure?.what },
          ]}
        />
      )}
    </Section>
  );
}

function Trainings({ report }: { report: Report }) {
  const rows = report.phase2.trainings;
  return (
    <Section title="Adapters">
      {rows.length === 0 && <p>Nothing was trained.</p>}
      {rows.length > 0 && (
        <Table
          caption="Trainings"
          rows={rows}
          rowKey={(row) => row.marker}
          columns={[
            { title: "Marker", cell: (row) => row.marker },
            { title: "Outcome", cell: (row) => row.outcome },
            {
              title: "Version",
              cell: (row) => row.version && <Link href={`/adapters/${row.version}`}>{row.version}</Link>,
            },
            { title: "Rows", numeric: true, cell: (row) => formatNumber(row.rows) },
            { title: "First loss", numeric: true, cell: (row) => formatNumber(row.first_loss) },
            { title: "Final loss", numeric: true, cell: (row) => formatNumber(row.final_loss) },
            { title: "Gate", cell: (row) => row.gate.join("; ") || row.note || row.failure?.what },
            { title: "Took", cell: (row) => formatDuration(row.seconds) },
          ]}
        />
      )}
    </Section>
  );
}
