// Pages of a list: by the cursor of the page before, or by an offset. The buttons are the same.

import { useState } from "react";

export interface PagerProps {
  /** Name of the list, for a screen reader: `Jobs`. */
  label: string;
  /** What of it is shown: `51 to 100 of 312`. */
  range?: string;
  hasPrevious: boolean;
  hasNext: boolean;
  onPrevious: () => void;
  onNext: () => void;
}

export function Pager({ label, range, hasPrevious, hasNext, onPrevious, onNext }: PagerProps) {
  if (!hasPrevious && !hasNext && !range) return null;
  return (
    <nav className="actions" aria-label={`Pages of ${label}`}>
      <button type="button" disabled={!hasPrevious} onClick={onPrevious}>
        Previous
      </button>
      <button type="button" disabled={!hasNext} onClick={onNext}>
        Next
      </button>
      {range && (
        <span className="quiet" aria-live="polite">
          {range}
        </span>
      )}
    </nav>
  );
}

/**
 * The cursors that led to a page. `cursor` is empty for the first one; `key` names what is listed: with another one the
 * first page is shown again.
 */
export function useCursor(key: string): {
  cursor: string;
  page: number;
  next: (cursor: string) => void;
  previous: () => void;
} {
  const [state, setState] = useState<{ key: string; cursors: string[] }>({ key, cursors: [] });
  const cursors = state.key === key ? state.cursors : [];
  return {
    cursor: cursors.at(-1) ?? "",
    page: cursors.length,
    next: (cursor) => setState({ key, cursors: [...cursors, cursor] }),
    previous: () => setState({ key, cursors: cursors.slice(0, -1) }),
  };
}
