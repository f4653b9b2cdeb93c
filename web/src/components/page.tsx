// The frame of a page: title, actions, and the state of its first query.

import type { UseQueryResult } from "@tanstack/react-query";
import { useEffect, type ReactNode } from "react";
import { formatTime } from "./format";
import { Loading, ProblemNote } from "./notes";

export function Page({ title, actions, children }: { title: string; actions?: ReactNode; children: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Trainyard`;
  }, [title]);
  return (
    <main id="content" tabIndex={-1}>
      <div className="page-head">
        <h1>{title}</h1>
        {actions && <div className="actions">{actions}</div>}
      </div>
      {children}
    </main>
  );
}

export function Section({ title, actions, children }: { title: string; actions?: ReactNode; children: ReactNode }) {
  return (
    <section className="panel">
      <div className="panel-head">
        <h2>{title}</h2>
        {actions && <div className="actions">{actions}</div>}
      </div>
      {children}
    </section>
  );
}

/** The content of a query, or what it waits for. Data that could not be read again is shown with its age. */
export function Queried<T>({ query, children }: { query: UseQueryResult<T>; children: (data: T) => ReactNode }) {
  if (query.isPending) return <Loading />;
  if (query.data === undefined) return <ProblemNote error={query.error} onRetry={() => void query.refetch()} />;
  return (
    <>
      {query.isError && (
        <p className="stale" role="status">
          This is from {formatTime(query.dataUpdatedAt / 1000)}: {(query.error as Error).message}
        </p>
      )}
      <div className={query.isError ? "queried is-stale" : "queried"}>{children(query.data)}</div>
    </>
  );
}
