// Which column of a file is which field of a row: `columns: {prompt: frage}` as selects with the file's own columns.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useId, useState } from "react";
import { client, dataOf } from "../api/client";
import { labelOf } from "./format";
import "./form.css";

const ASK_AFTER_MS = 300;
/** The fields that most files need; the others are folded away. */
const USUAL = ["prompt", "completion", "messages", "chosen", "rejected", "text"];

type Mapping = Record<string, unknown>;

/** The columns of a file inside the data roots; nothing for addresses, documents and paths that are not there. */
export function useColumns(path: unknown) {
  const [settledPath, setSettledPath] = useState("");
  const address = typeof path === "string" && !path.includes("://") && !path.startsWith("hub:") ? path : "";
  useEffect(() => {
    const handle = window.setTimeout(() => setSettledPath(address), ASK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [address]);
  return useQuery({
    queryKey: ["data", "columns", settledPath],
    queryFn: () => dataOf(client.GET("/api/v1/data/columns", { params: { query: { path: settledPath } } })),
    enabled: settledPath !== "",
    placeholderData: keepPreviousData,
    staleTime: 30_000,
    retry: false,
  });
}

export function ColumnMap({
  path,
  value,
  onChange,
  title = "Columns",
}: {
  path: unknown;
  value: unknown;
  onChange: (value: unknown) => void;
  title?: string;
}) {
  const { data, error, isPlaceholderData } = useColumns(path);
  const mapping = (value ?? {}) as Mapping;
  const mappedFields = Object.keys(mapping);
  if (!path || (!data?.columns.length && mappedFields.length === 0)) return null;
  const columns = data?.columns ?? [];
  const isRead = error !== null || (data !== undefined && !isPlaceholderData);
  const names = new Set(columns.map((column) => column.name));
  const fields = data?.fields ?? mappedFields;
  const matching = fields.filter((field) => names.has(field));
  const usedColumns = new Set(Object.values(mapping));
  const ignoredColumns = columns.filter((column) => !usedColumns.has(column.name) && !matching.includes(column.name));
  const set = (field: string, column: string) => {
    const { [field]: _, ...remaining } = mapping;
    const next = column ? { ...remaining, [field]: column } : remaining;
    onChange(Object.keys(next).length > 0 ? next : undefined);
  };
  const select = (field: string) => (
    <ColumnSelect
      key={field}
      field={field}
      value={mapping[field]}
      columns={columns}
      isRead={isRead}
      set={(name) => set(field, name)}
    />
  );
  const usual = fields.filter((field) => USUAL.includes(field) || field in mapping);
  const furtherFields = fields.filter((field) => !usual.includes(field));
  return (
    <details className="field wide" open={mappedFields.length > 0 || (columns.length > 0 && matching.length === 0)}>
      <summary>
        {title} {mappedFields.length > 0 && <span className="quiet">({mappedFields.length} set)</span>}
      </summary>
      <p className="help">
        {isRead
          ? `The file has ${columns.map((column) => column.name).join(", ") || "no columns"}. Columns that are called like a field need no choice.`
          : "Reading the columns of the file …"}
      </p>
      <div className="column-map">{usual.map(select)}</div>
      {furtherFields.length > 0 && (
        <details>
          <summary>More fields</summary>
          <div className="column-map">{furtherFields.map(select)}</div>
        </details>
      )}
      {mappedFields.length > 0 && ignoredColumns.length > 0 && (
        <p className="help">Not read: {ignoredColumns.map((column) => column.name).join(", ")}.</p>
      )}
    </details>
  );
}

function ColumnSelect(props: {
  field: string;
  value: unknown;
  columns: readonly { name: string; example: string }[];
  /** Whether the columns are those of the file that is named now. */
  isRead: boolean;
  set: (column: string) => void;
}) {
  const { field, columns, isRead, set } = props;
  const id = useId();
  const value = typeof props.value === "string" ? props.value : "";
  const example = columns.find((column) => column.name === value)?.example ?? "";
  const isKnown = value === "" || columns.some((column) => column.name === value);
  return (
    <div>
      <label htmlFor={id}>{labelOf(field)}</label>
      <select
        id={id}
        value={value}
        onChange={(event) => set(event.target.value)}
        aria-invalid={(isRead && !isKnown) || undefined}
      >
        <option value="">{columns.some((column) => column.name === field) ? `${field} (same name)` : "none"}</option>
        {columns.map((column) => (
          <option key={column.name} value={column.name}>
            {column.name}
          </option>
        ))}
        {!isKnown && <option value={value}>{isRead ? `${value}: not in the file` : value}</option>}
      </select>
      {example && <p className="help">{example}</p>}
    </div>
  );
}
