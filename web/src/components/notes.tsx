// What a page says besides its content: it loads, it is empty, something was refused.

import type { ReactNode } from "react";
import { Problem } from "../api/client";
import { Prose } from "./prose";

export function Loading({ what = "Loading", onCancel }: { what?: string; onCancel?: () => void }) {
  return (
    <p className="loading" role="status">
      {what} …{" "}
      {onCancel && (
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
      )}
    </p>
  );
}

/** A page without content: what would be here, and the next step. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** An error: what was given, why it is refused, what to do, its code and its trace. */
export function ProblemNote({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = error instanceof Problem ? error : new Problem(0, "", String((error as Error)?.message ?? error));
  return (
    <div className="problem" role="alert">
      <p>
        <strong>
          <Prose text={problem.what} />
        </strong>{" "}
        <Prose text={problem.why} />
      </p>
      {problem.remedy && (
        <p>
          <Prose text={problem.remedy} />
        </p>
      )}
      {problem.errors.length > 0 && (
        <ul>
          {problem.errors.map((one, index) => (
            <li key={index}>
              {[one.node, one.field].filter(Boolean).join(": ")} <Prose text={one.because} />{" "}
              <Prose text={one.instead} /> {one.code && <code>{one.code}</code>}
            </li>
          ))}
        </ul>
      )}
      <p className="quiet">
        {problem.code && <code>{problem.code}</code>} {problem.trace && <>trace {problem.trace}</>}
      </p>
      {onRetry && (
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}
