// The audit log: changes with their callers, surfaces and results.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { ActionButton } from "../../components/action";
import { useCancelable } from "../../components/cancelable";
import { formatDuration, formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Queried, Section } from "../../components/page";
import { Table } from "../../components/table";

const OUTCOMES = ["", "done", "failed", "denied", "stopped", "unfinished"];
const PAGE = 50;

export function AuditLog() {
  const [outcome, setOutcome] = useState("");
  const [limit, setLimit] = useState(PAGE);
  const audit = useQuery({
    queryKey: ["audit", outcome, limit],
    queryFn: () => dataOf(client.GET("/api/v1/audit", { params: { query: { limit, ...(outcome && { outcome }) } } })),
    placeholderData: (previous) => previous,
  });
  const verify = useCancelable((_: void, signal) => dataOf(client.GET("/api/v1/audit/verify", { signal })));
  return (
    <Section
      title="Audit log"
      actions={
        <>
          <label htmlFor="outcome">Outcome</label>
          <select id="outcome" value={outcome} onChange={(event) => setOutcome(event.target.value)}>
            {OUTCOMES.map((entry) => (
              <option key={entry} value={entry}>
                {entry || "any"}
              </option>
            ))}
          </select>
          <ActionButton mutation={verify} variables={undefined} onCancel={verify.cancel}>
            Verify
          </ActionButton>
        </>
      }
    >
      {verify.data && (
        <p role="status">
          {verify.data.problems.length === 0
            ? `${verify.data.lines} lines, none missing or changed`
            : verify.data.problems.join(" ")}
        </p>
      )}
      <Queried query={audit}>
        {({ entries }) =>
          entries.length === 0 ? (
            <Empty title={outcome ? `Nothing ended as ${outcome}` : "Nothing was changed yet"}>
              <p>
                {outcome ? (
                  <button type="button" onClick={() => setOutcome("")}>
                    Show every outcome
                  </button>
                ) : (
                  <>
                    What changes something is written here with its caller, such as the start of{" "}
                    <Link href="/jobs/new">a job</Link>.
                  </>
                )}
              </p>
            </Empty>
          ) : (
            <>
              <Table
                caption="Audit log, the newest first"
                rows={entries}
                rowKey={(entry) => entry.id}
                columns={[
                  { title: "Time", cell: (entry) => formatTime(entry.time) },
                  { title: "Caller", cell: (entry) => entry.caller },
                  { title: "Tenant", cell: (entry) => entry.tenant || "every tenant" },
                  { title: "Through", cell: (entry) => entry.surface },
                  { title: "Operation", cell: (entry) => entry.operation },
                  { title: "Outcome", cell: (entry) => [entry.outcome, entry.code].filter(Boolean).join(" ") },
                  { title: "Took", numeric: true, cell: (entry) => formatDuration(entry.seconds) },
                  { title: "Trace", cell: (entry) => <code title={entry.trace}>{entry.trace.slice(0, 8)}</code> },
                ]}
              />
              {entries.length === limit && (
                <button type="button" onClick={() => setLimit(limit + PAGE)}>
                  Older
                </button>
              )}
            </>
          )
        }
      </Queried>
    </Section>
  );
}
