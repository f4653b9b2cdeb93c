// One result: where its rows are (read = kept + held out + dropped), its rows part by part, its files.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatBytes, formatNumber, formatTime, titleOfResult } from "../../components/format";
import { Page, Queried, Section } from "../../components/page";
import { RowsBrowser, toWords, type ArtifactPort, type Place } from "../../components/rows";
import { Facts, Table } from "../../components/table";

type Detail = components["schemas"]["ArtifactDetail"];

export default function ArtifactPage({ run, node, port }: { run: string; node: string; port: ArtifactPort }) {
  const address: Place = { run, node, port };
  const query = useQuery({
    queryKey: ["artifact", address],
    queryFn: () => dataOf(client.GET("/api/v1/artifacts/{run}/{node}/{port}", { params: { path: address } })),
  });
  return (
    <Page title={`${node}: ${port}`} actions={<Link href="/data">All results</Link>}>
      <Queried query={query}>
        {(artifact) => (
          <>
            <Section title="Result">
              <Facts
                facts={[
                  [
                    "Run",
                    <Link href={`/jobs/${artifact.run_id}`}>
                      {titleOfResult({ run_name: artifact.run_name, ended: artifact.ended })}
                    </Link>,
                  ],
                  ["Node", `${artifact.node} (${artifact.node_type})`],
                  ["Rows", formatNumber(artifact.rows)],
                  ["Size", formatBytes(artifact.bytes)],
                  ["Ended", `${formatTime(artifact.ended)}${artifact.reused ? ", reused" : ""}`],
                  ["Tenant", artifact.tenant],
                  ["SHA-256", <code>{artifact.sha256}</code>],
                ]}
              />
            </Section>
            <Account facts={artifact.facts} />
            {artifact.parts.length > 0 && <Parts artifact={artifact} location={address} />}
            <OtherFacts facts={artifact.facts} />
            <Section title="Files">
              <Table
                caption="Files"
                rows={artifact.files}
                rowKey={(file) => file.name}
                columns={[
                  { title: "File", cell: (file) => file.name },
                  { title: "Size", numeric: true, cell: (file) => formatBytes(file.bytes) },
                  { title: "SHA-256", cell: (file) => <code>{file.sha256.slice(0, 16)}</code> },
                ]}
              />
            </Section>
          </>
        )}
      </Queried>
    </Page>
  );
}

const counts = (value: unknown): [string, number][] =>
  Object.entries((value ?? {}) as Record<string, unknown>).filter(
    (pair): pair is [string, number] => typeof pair[1] === "number",
  );

/** Account of all rows: kept, held out, and dropped by reason. */
function Account({ facts }: { facts: Record<string, unknown> }) {
  const read = facts.read ?? facts.asked;
  if (typeof read !== "number") return null;
  const rows: [string, number][] = [
    [facts.read === undefined ? "asked for" : "read", read],
    ...(typeof facts.kept === "number" ? [["kept", facts.kept] as [string, number]] : []),
    ...counts(facts.heldout).map(([name, count]): [string, number] => [`held out: ${toWords(name)}`, count]),
    ...counts(facts.dropped ?? facts.rejected).map(([name, count]): [string, number] => [
      `dropped: ${toWords(name)}`,
      count,
    ]),
  ];
  return (
    <Section title="Where every row is">
      <Table
        caption="Where every row is"
        rows={rows}
        rowKey={([name]) => name}
        columns={[
          { title: "Rows", cell: ([name]) => name },
          { title: "Count", numeric: true, cell: ([, count]) => formatNumber(count) },
          {
            title: "Share",
            cell: ([name, count]) => <meter min={0} max={read} value={count} aria-label={`${name}: share`} />,
          },
        ]}
      />
    </Section>
  );
}

const ACCOUNTED = new Set(["read", "asked", "kept", "heldout", "dropped", "rejected", "port"]);

function OtherFacts({ facts }: { facts: Record<string, unknown> }) {
  const flat = Object.entries(facts).filter(([name, value]) => !ACCOUNTED.has(name) && !isNothing(value));
  if (flat.length === 0) return null;
  return (
    <Section title="What the node counted">
      <Facts facts={flat.map(([name, value]) => [toWords(name), <FactValue value={value} />])} />
    </Section>
  );
}

const isNothing = (value: unknown): boolean =>
  value == null || value === "" || (typeof value === "object" && Object.keys(value as object).length === 0);

/** A number or a text as it is, a list of texts as a list, the rest by names. */
function FactValue({ value }: { value: unknown }) {
  if (typeof value === "number") return formatNumber(value);
  if (typeof value !== "object" || value === null) return String(value);
  if (Array.isArray(value) && value.every((artifact) => typeof artifact === "string"))
    return (
      <ul>
        {value.map((name) => (
          <li key={name}>{name}</li>
        ))}
      </ul>
    );
  return (
    <details>
      <summary>{Object.keys(value).length} values</summary>
      <pre>{JSON.stringify(value, null, 1)}</pre>
    </details>
  );
}

const TITLES: Record<string, string> = { rows: "Kept", dropped: "Dropped" };

function Parts({ artifact, location }: { artifact: Detail; location: Place }) {
  const [selectedPart, setSelectedPart] = useState(artifact.parts[0].name);
  return (
    <Section title="Rows">
      <div className="tabs" role="group" aria-label="Which rows">
        {artifact.parts.map((part) => (
          <button
            key={part.name}
            type="button"
            aria-pressed={part.name === selectedPart}
            onClick={() => setSelectedPart(part.name)}
          >
            {TITLES[part.name] ?? `Held out: ${toWords(part.name)}`} ({formatNumber(part.rows)})
          </button>
        ))}
      </div>
      <RowsBrowser key={selectedPart} location={location} part={selectedPart} />
    </Section>
  );
}
