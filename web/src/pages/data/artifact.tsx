// One result: where its rows are (read = kept + held out + dropped), its rows part by part, its files.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatBytes, formatNumber, formatTime, titleOfResult } from "../../components/format";
import { Page, Queried, Section } from "../../components/page";
import { RowsBrowser, words, type ArtifactPort, type Place } from "../../components/rows";
import { Facts, Table } from "../../components/table";

type Detail = components["schemas"]["ArtifactDetail"];

export default function ArtifactPage({ run, node, port }: { run: string; node: string; port: ArtifactPort }) {
  const place: Place = { run, node, port };
  const query = useQuery({
    queryKey: ["artifact", place],
    queryFn: () => dataOf(client.GET("/api/v1/artifacts/{run}/{node}/{port}", { params: { path: place } })),
  });
  return (
    <Page title={`${node}: ${port}`} actions={<Link href="/data">All results</Link>}>
      <Queried query={query}>
        {(one) => (
          <>
            <Section title="Result">
              <Facts
                facts={[
                  [
                    "Run",
                    <Link href={`/jobs/${one.run_id}`}>
                      {titleOfResult({ run_name: one.run_name, ended: one.ended })}
                    </Link>,
                  ],
                  ["Node", `${one.node} (${one.node_type})`],
                  ["Rows", formatNumber(one.rows)],
                  ["Size", formatBytes(one.bytes)],
                  ["Ended", `${formatTime(one.ended)}${one.reused ? ", reused" : ""}`],
                  ["Tenant", one.tenant],
                  ["SHA-256", <code>{one.sha256}</code>],
                ]}
              />
            </Section>
            <Account facts={one.facts} />
            {one.parts.length > 0 && <Parts one={one} place={place} />}
            <OtherFacts facts={one.facts} />
            <Section title="Files">
              <Table
                caption="Files"
                rows={one.files}
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

/** Where every row that was read is now: what is kept, held out, and dropped by reason. */
function Account({ facts }: { facts: Record<string, unknown> }) {
  const read = facts.read ?? facts.asked;
  if (typeof read !== "number") return null;
  const rows: [string, number][] = [
    [facts.read === undefined ? "asked for" : "read", read],
    ...(typeof facts.kept === "number" ? [["kept", facts.kept] as [string, number]] : []),
    ...counts(facts.heldout).map(([name, count]): [string, number] => [`held out: ${words(name)}`, count]),
    ...counts(facts.dropped ?? facts.rejected).map(([name, count]): [string, number] => [
      `dropped: ${words(name)}`,
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
      <Facts facts={flat.map(([name, value]) => [words(name), <FactValue value={value} />])} />
    </Section>
  );
}

const isNothing = (value: unknown): boolean =>
  value == null || value === "" || (typeof value === "object" && Object.keys(value as object).length === 0);

/** A number or a text as it is, a list of texts as a list, the rest by names. */
function FactValue({ value }: { value: unknown }) {
  if (typeof value === "number") return formatNumber(value);
  if (typeof value !== "object" || value === null) return String(value);
  if (Array.isArray(value) && value.every((one) => typeof one === "string"))
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

function Parts({ one, place }: { one: Detail; place: Place }) {
  const [chosen, setChosen] = useState(one.parts[0].name);
  return (
    <Section title="Rows">
      <div className="tabs" role="group" aria-label="Which rows">
        {one.parts.map((part) => (
          <button
            key={part.name}
            type="button"
            aria-pressed={part.name === chosen}
            onClick={() => setChosen(part.name)}
          >
            {TITLES[part.name] ?? `Held out: ${words(part.name)}`} ({formatNumber(part.rows)})
          </button>
        ))}
      </div>
      <RowsBrowser key={chosen} place={place} part={chosen} />
    </Section>
  );
}
