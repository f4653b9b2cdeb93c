// Reasons against a chain, each with the node and the field that it is about.

import { Prose } from "../../components/prose";
import type { CheckReason } from "./editor/server";

export function Reasons({ reasons, onSelect }: { reasons: readonly CheckReason[]; onSelect?: (node: string) => void }) {
  return (
    <ul className="reasons">
      {reasons.map((reason, index) => (
        <li key={index} className="wrong">
          {reason.node && onSelect ? (
            <button type="button" onClick={() => onSelect(reason.node!)}>
              {reason.node}
            </button>
          ) : (
            reason.node
          )}
          {reason.node && ": "}
          {reason.field && <code>{reason.field}</code>} <Prose text={reason.because} /> <Prose text={reason.instead} />{" "}
          <code>{reason.code}</code>
        </li>
      ))}
    </ul>
  );
}

/** Results of a check besides reasons: choices of the machine, and unread data. */
export function CheckNotes({ notes = [] }: { notes?: readonly string[] }) {
  if (notes.length === 0) return null;
  return (
    <ul className="check-notes" aria-label="Notes of the check">
      {notes.map((text) => (
        <li key={text}>
          <Prose text={text} />
        </li>
      ))}
    </ul>
  );
}
