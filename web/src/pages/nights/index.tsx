// Nights: their results, the corpora against their thresholds, and the size of the graph.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import { formatDuration, formatNumber, formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import { toWords } from "../../components/rows";

const NIGHTS = 50;
/** The most that the service lists. */
const MOST_NIGHTS = 200;

export default function NightsPage() {
  const [limit, setLimit] = useState(NIGHTS);
  const nights = useQuery({
    queryKey: ["nights", limit],
    queryFn: () => dataOf(client.GET("/api/v1/nightly/nights", { params: { query: { limit } } })),
    refetchInterval: 30_000,
    placeholderData: keepPreviousData,
  });
  return (
    <Page title="Nights" actions={<Link href="/nights/graph">Browse the graph</Link>}>
      <Section title="Reports">
        <Queried query={nights}>
          {({ nights, more }) =>
            nights.length === 0 ? (
              <Empty title="No night yet">
                <p>
                  A night reads documents into the knowledge graph and trains on full corpora. Start one with{" "}
                  <code>trainyard nightly run</code>, or turn its schedule on in the Prefect pages.
                </p>
              </Empty>
            ) : (
              <>
                <Table
                  caption="Nights"
                  rows={nights}
                  rowKey={(night) => `${night.tenant}/${night.night}`}
                  columns={[
                    {
                      title: "Night",
                      cell: (night) => (
                        <Link href={`/nights/${night.tenant}/${night.night}`}>{`${night.night}, ${night.tenant}`}</Link>
                      ),
                    },
                    { title: "State", cell: (night) => <NightState state={night.state} /> },
                    { title: "What happened", cell: (night) => night.headline },
                    { title: "Began", cell: (night) => formatTime(night.started) },
                    { title: "Took", cell: (night) => formatDuration(night.seconds) },
                  ]}
                />
                {more && limit < MOST_NIGHTS && (
                  <button type="button" disabled={nights.length < limit} onClick={() => setLimit(limit + NIGHTS)}>
                    Older
                  </button>
                )}
                {more && limit >= MOST_NIGHTS && <OlderNight />}
              </>
            )
          }
        </Queried>
      </Section>
      <Corpora />
      <GraphCounts />
    </Page>
  );
}

/** A night before those of the list, by its name. */
function OlderNight() {
  const [, navigate] = useLocation();
  const { tenant } = useLogin();
  return (
    <form
      className="form-row"
      onSubmit={(event) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget);
        navigate(
          `/nights/${encodeURIComponent(String(form.get("tenant")))}/${encodeURIComponent(String(form.get("night")))}`,
        );
      }}
    >
      <div>
        <label htmlFor="older-tenant">Tenant</label>
        <input id="older-tenant" name="tenant" required defaultValue={tenant || "default"} />
      </div>
      <div>
        <label htmlFor="older-night">Night before these</label>
        <input id="older-night" name="night" required placeholder="2026-01-31" />
      </div>
      <button>Open</button>
    </form>
  );
}

const SHAPES: Record<string, string> = { completed: "●", failed: "✕", skipped: "·", begun: "◐", unreadable: "?" };

export function NightState({ state }: { state: string }) {
  return (
    <span className={`state state-${state === "begun" ? "running" : state}`}>
      <span aria-hidden="true">{SHAPES[state] ?? "○"}</span> {state}
    </span>
  );
}

/** What a number is against what it is measured by, as text and as a bar. */
export function Against({
  value,
  limit,
  label,
  unit,
}: {
  value: number;
  limit: number;
  label: string;
  unit: (value: number) => string;
}) {
  return (
    <span className="budget">
      {limit > 0 ? `${unit(value)} of ${unit(limit)}` : unit(value)}{" "}
      {limit > 0 && (
        <meter
          min={0}
          max={limit}
          value={Math.min(value, limit)}
          aria-label={`${label}: ${unit(value)} of ${unit(limit)}`}
        />
      )}
      {limit > 0 && value > limit && " over"}
    </span>
  );
}

/** The corpora of this home's night. They are of the whole machine: a token of one tenant does not see them. */
function Corpora() {
  const { tenant } = useLogin();
  const query = useQuery({
    queryKey: ["corpora"],
    staleTime: 60_000, // they are read in a child process, which takes a second or more
    queryFn: () => dataOf(client.GET("/api/v1/corpus")),
    enabled: tenant === "",
  });
  if (tenant !== "") return null;
  return (
    <Section title="Corpora against their thresholds">
      <Queried query={query}>
        {({ buckets }) => (
          <Table
            caption="Corpora"
            rows={buckets}
            rowKey={(bucket) => bucket.bucket}
            columns={[
              { title: "Corpus", cell: (bucket) => bucket.bucket },
              { title: "Trains", cell: (bucket) => `${bucket.role} (${bucket.method})` },
              {
                title: "Valid of threshold",
                cell: (bucket) => (
                  <Against value={bucket.valid} limit={bucket.threshold} label={bucket.bucket} unit={formatNumber} />
                ),
              },
              { title: "Invalid", numeric: true, cell: (bucket) => formatNumber(bucket.invalid) },
              { title: "Duplicates", numeric: true, cell: (bucket) => formatNumber(bucket.duplicates) },
            ]}
          />
        )}
      </Queried>
    </Section>
  );
}

function GraphCounts() {
  const query = useQuery({
    queryKey: ["graph", "stats"],
    staleTime: 60_000, // opening the database takes a second
    queryFn: () => dataOf(client.GET("/api/v1/graph/stats")),
  });
  return (
    <Section title="Knowledge graph" actions={<Link href="/nights/graph">Browse it</Link>}>
      <Queried query={query}>
        {(counts) => (
          <Table
            caption="What is in the graph"
            rows={
              [
                ["documents", counts.documents],
                ["entities", counts.entities],
                ...pairs(counts.entities_by_kind).map(
                  ([kind, count]) => [`entities: ${toWords(kind)}`, count] as const,
                ),
                ["relations", counts.relations],
                ...pairs(counts.relations_by_kind).map(
                  ([kind, count]) => [`relations: ${toWords(kind)}`, count] as const,
                ),
              ] as [string, number][]
            }
            rowKey={([name]) => name}
            columns={[
              { title: "What", cell: ([name]) => name },
              { title: "Count", numeric: true, cell: ([, count]) => formatNumber(count) },
            ]}
          />
        )}
      </Queried>
    </Section>
  );
}

const pairs = (counts: Record<string, number>): [string, number][] => Object.entries(counts);
