// A table of rows. On a narrow screen it scrolls inside its frame, so that the page does not.

import type { ReactNode } from "react";

export interface Column<Row> {
  /** Heading of the column. */
  title: string;
  cell: (row: Row) => ReactNode;
  numeric?: boolean;
}

interface TableProps<Row> {
  /** What a screen reader says of the table. */
  caption: string;
  columns: Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row, index: number) => string | number;
  /** On a telephone each row is a card with the headings next to the values, and nothing scrolls sideways. */
  cards?: boolean;
}

export function Table<Row>({ caption, columns, rows, rowKey, cards = false }: TableProps<Row>) {
  return (
    <div className={cards ? "table-frame as-cards" : "table-frame"} tabIndex={0} role="region" aria-label={caption}>
      <table role={cards ? "table" : undefined}>
        <caption className="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" className={column.numeric ? "numeric" : undefined}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role={cards ? "rowgroup" : undefined}>
          {rows.map((row, index) => (
            <tr key={rowKey(row, index)} role={cards ? "row" : undefined}>
              {columns.map((column) => (
                <td
                  key={column.title}
                  role={cards ? "cell" : undefined}
                  className={column.numeric ? "numeric" : undefined}
                  data-title={column.title}
                >
                  {cards ? <div className="card-value">{column.cell(row)}</div> : column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Names and values, such as the facts of a job. */
export function Facts({ facts }: { facts: readonly (readonly [string, ReactNode])[] }) {
  return (
    <dl className="facts">
      {facts
        .filter(([, value]) => value !== "" && value != null)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
