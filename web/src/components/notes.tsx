// What a page says besides its content: it loads, it is empty, something was refused.

import { Fragment, type ReactNode } from "react";
import { Problem, type ProblemReason } from "../api/client";
import { Prose } from "./prose";

export function Loading({ label = "Loading", onCancel }: { label?: string; onCancel?: () => void }) {
  return (
    <p className="loading" role="status">
      {label} …{" "}
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

/** Reasons of a refusal, each once: of those that a form shows at their field, only the field is named. */
export function ReasonList({ reasons, fieldOf }: { reasons: readonly ProblemReason[]; fieldOf?: FieldOf }) {
  const markedFields = [...new Set(reasons.flatMap((reason) => fieldOf?.(reason) || []))];
  const otherReasons = reasons.filter((reason) => !fieldOf?.(reason));
  return (
    <ul>
      {markedFields.length > 0 && (
        <li>
          said at {markedFields.length === 1 ? "its field" : "their fields"}:{" "}
          {markedFields.map((field, index) => (
            <Fragment key={field}>
              {index > 0 && ", "}
              <code>{field}</code>
            </Fragment>
          ))}
        </li>
      )}
      {otherReasons.map((reason, index) => (
        <li key={index}>
          {reason.node && `${reason.node}: `}
          {reason.field && <code>{reason.field}</code>} <Prose text={reason.because} /> <Prose text={reason.instead} />{" "}
          {reason.code && <code>{reason.code}</code>}
        </li>
      ))}
    </ul>
  );
}

/** The path of the field of a form that shows a reason; empty for none. */
export type FieldOf = (reason: ProblemReason) => string;

interface ProblemNoteProps {
  error: unknown;
  onRetry?: () => void;
  fieldOf?: FieldOf;
}

/** An error: the given value, the reason, the next step, its code and its trace. */
export function ProblemNote({ error, onRetry, fieldOf }: ProblemNoteProps) {
  const problem = error instanceof Problem ? error : new Problem(0, "", String((error as Error)?.message ?? error));
  // The reasons say the same, each with its field.
  const isListed = problem.errors.length > 0 && problem.errors.every((reason) => problem.why.includes(reason.because));
  const isRemedyListed = problem.errors.some((reason) => reason.instead === problem.remedy);
  return (
    <div className="problem" role="alert">
      <p>
        <strong>
          <Prose text={problem.summary} />
        </strong>{" "}
        {!isListed && <Prose text={problem.why} />}
      </p>
      {problem.remedy && !isRemedyListed && (
        <p>
          <Prose text={problem.remedy} />
        </p>
      )}
      {problem.errors.length > 0 && <ReasonList reasons={problem.errors} fieldOf={fieldOf} />}
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
