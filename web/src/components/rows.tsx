// Rows of a result, page by page: chats as turns, long texts cut with a way to the whole, drops with their reasons.

import "../styles/records.css";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useId, useRef, useState, type ReactNode } from "react";
import { client, dataOf } from "../api/client";
import type { components } from "../api/schema";
import { formatNumber } from "./format";
import { Empty, ProblemNote } from "./notes";
import { Queried } from "./page";
import { Table } from "./table";

export type ArtifactPort = components["schemas"]["Port"];
export type StoredRow = components["schemas"]["ArtifactRow"];
/** One result: where it is. */
export interface Place {
  run: string;
  node: string;
  port: ArtifactPort;
}

const PAGE_ROWS = 20;
const WHOLE_CHARS = 4_000_000;

/** `near_duplicate` is `near duplicate`. */
export const toWords = (name: string): string => name.replaceAll("_", " ");

/** A part of a result with its pages, a search and the choice of a reason. */
export function RowsBrowser({
  location,
  part,
  onReason,
}: {
  location: Place;
  part: string;
  onReason?: (text: string) => void;
}) {
  const [offsets, setOffsets] = useState([0]);
  const [reason, setReason] = useState("");
  const [text, setText] = useState("");
  const offset = offsets[offsets.length - 1];
  const query = {
    part,
    offset,
    limit: PAGE_ROWS,
    ...(reason && { reason }),
    ...(text && { text }),
  };
  const rows = useQuery({
    queryKey: ["rows", location, query],
    queryFn: () =>
      dataOf(client.GET("/api/v1/artifacts/{run}/{node}/{port}/rows", { params: { path: location, query } })),
    placeholderData: keepPreviousData,
  });
  const begin = (change: () => void) => {
    change();
    setOffsets([0]);
  };
  return (
    <Queried query={rows}>
      {(page) => (
        <>
          <RowsFilter
            reasons={page.reasons}
            reason={reason}
            onReason={(next) => begin(() => (setReason(next), onReason?.(next)))}
            onText={(next) => begin(() => setText(next))}
          />
          {page.rows.length === 0 && page.next_offset == null ? (
            <Empty title={reason || text ? "No row matches" : "No rows"}>
              {part === "dropped" && !reason && !text && <p>Nothing was dropped here.</p>}
            </Empty>
          ) : (
            <RowsTable rows={page.rows} columns={page.columns} location={location} part={part} />
          )}
          <div className="actions" aria-live="polite">
            <button type="button" disabled={offsets.length < 2} onClick={() => setOffsets(offsets.slice(0, -1))}>
              Previous
            </button>
            <button
              type="button"
              disabled={page.next_offset == null}
              onClick={() => page.next_offset != null && setOffsets([...offsets, page.next_offset])}
            >
              Next
            </button>
            <span className="quiet">{pageText(page)}</span>
          </div>
        </>
      )}
    </Queried>
  );
}

function pageText(page: components["schemas"]["ArtifactRows"]): string {
  const totalText = `${formatNumber(page.total)} rows`;
  if (page.rows.length === 0)
    return page.next_offset == null
      ? totalText
      : `nothing up to row ${formatNumber(page.next_offset)} of ${totalText}: Next searches on`;
  const [first, last] = [page.rows[0].index, page.rows[page.rows.length - 1].index];
  return `rows ${formatNumber(first)} to ${formatNumber(last)} of ${totalText}, counted from 0`;
}

interface FilterProps {
  reasons: Record<string, number>;
  reason: string;
  onReason: (reason: string) => void;
  onText: (text: string) => void;
}

function RowsFilter({ reasons, reason, onReason, onText }: FilterProps) {
  const id = useId();
  return (
    <form
      className="filters"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        onText(String(new FormData(event.currentTarget).get("text") ?? ""));
      }}
    >
      {Object.keys(reasons).length > 0 && (
        <div>
          <label htmlFor={`${id}-reason`}>Reason</label>
          <select id={`${id}-reason`} value={reason} onChange={(event) => onReason(event.target.value)}>
            <option value="">all reasons</option>
            {Object.entries(reasons).map(([name, count]) => (
              <option key={name} value={name}>
                {toWords(name)} ({formatNumber(count)})
              </option>
            ))}
          </select>
        </div>
      )}
      <div>
        <label htmlFor={`${id}-text`}>Text in a row</label>
        <input id={`${id}-text`} name="text" type="search" maxLength={200} />
      </div>
      <button type="submit">Search</button>
    </form>
  );
}

interface RowsTableProps {
  rows: readonly StoredRow[];
  columns?: readonly string[];
  /** Where the rows are, so that a row that was cut can be read whole. */
  location?: Place;
  part?: string;
}

/** Rows as a table; a column without any value is left out. */
export function RowsTable({ rows, columns, location, part }: RowsTableProps) {
  const names = columns ?? [...new Set(rows.flatMap((row) => Object.keys(row.values)))];
  const visible = names.filter((name) => rows.some((row) => !isEmpty(row.values[name])));
  return (
    <Table
      caption="Rows"
      rows={rows}
      rowKey={(row) => row.index}
      columns={[
        {
          title: "Row",
          numeric: true,
          cell: (row) => (
            <>
              {formatNumber(row.index)}
              {row.cut && row.cut.length > 0 && location && part && (
                <WholeRow row={row} location={location} part={part} />
              )}
            </>
          ),
        },
        ...visible.map((name) => ({
          title: toWords(name),
          cell: (row: StoredRow) => <Value value={row.values[name]} />,
        })),
      ]}
    />
  );
}

const isEmpty = (value: unknown): boolean =>
  value == null || value === "" || (Array.isArray(value) && value.length === 0);

interface Turn {
  role: string;
  content: string;
  tool_calls?: string | null;
}

const isTurn = (value: unknown): value is Turn =>
  typeof value === "object" && value !== null && "role" in value && "content" in value;

/** A value of a row. A text is shown as it is, whatever it contains. */
export function Value({ value }: { value: unknown }): ReactNode {
  if (isEmpty(value)) return null;
  if (Array.isArray(value) && value.every(isTurn)) return <Turns turns={value} />;
  if (typeof value === "string") return <TextValue text={value} />;
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return <pre className="cell-text">{JSON.stringify(value, null, 1)}</pre>;
}

/** Text; the row of a quarantine is itself a row as JSON. */
function TextValue({ text }: { text: string }) {
  const inner = text.startsWith("{") ? parseObject(text) : null;
  if (inner && Array.isArray(inner.messages) && inner.messages.every(isTurn)) return <Turns turns={inner.messages} />;
  return <span className="cell-text">{text}</span>;
}

function parseObject(text: string): Record<string, unknown> | null {
  try {
    return JSON.parse(text);
  } catch {
    return null; // it was cut, or only begins like JSON
  }
}

function Turns({ turns }: { turns: readonly Turn[] }) {
  return (
    <dl className="turns">
      {turns.map((turn, index) => (
        <div key={index}>
          <dt>{turn.role}</dt>
          <dd className="cell-text">
            {turn.content}
            {turn.tool_calls && <code>{turn.tool_calls}</code>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** A button next to a row whose texts were cut: the whole row in a dialog. */
function WholeRow({ row, location, part }: { row: StoredRow; location: Place; part: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [isRequested, setIsRequested] = useState(false);
  const query = { part, offset: row.index, limit: 1, text_chars: WHOLE_CHARS };
  const whole = useQuery({
    queryKey: ["row", location, query],
    queryFn: () =>
      dataOf(client.GET("/api/v1/artifacts/{run}/{node}/{port}/rows", { params: { path: location, query } })),
    enabled: isRequested,
  });
  return (
    <>
      <button
        type="button"
        title={`Cut: ${row.cut?.join(", ")}`}
        onClick={() => {
          setIsRequested(true);
          dialog.current?.showModal();
        }}
      >
        Whole row
      </button>
      <dialog ref={dialog} aria-label={`Row ${row.index}, whole`} className="wide">
        <form method="dialog" className="actions">
          <button>Close</button>
        </form>
        {whole.error && <ProblemNote error={whole.error} />}
        <dl>
          {Object.entries(whole.data?.rows[0]?.values ?? {})
            .filter(([, value]) => !isEmpty(value))
            .map(([name, value]) => (
              <div key={name}>
                <dt>{toWords(name)}</dt>
                <dd>
                  <Value value={value} />
                </dd>
              </div>
            ))}
        </dl>
      </dialog>
    </>
  );
}
