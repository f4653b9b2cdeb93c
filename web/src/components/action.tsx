// A button that starts an action of the API: it asks before what cannot be undone, shows that it works, and why it failed.

import type { UseMutationResult } from "@tanstack/react-query";
import { useRef, type ReactNode } from "react";
import { ProblemNote } from "./notes";
import { questionsOf, type Question } from "./question";

interface ActionProps<T, V> {
  mutation: UseMutationResult<T, Error, V>;
  variables: V;
  children: ReactNode;
  /** What to ask first; without it the action starts at once. */
  confirm?: string;
  danger?: boolean;
  disabled?: boolean;
  /** Label of the action while its answer is awaited, where that takes long. */
  busy?: string;
  /** Ends the waiting for the answer of an action that only reads. */
  onCancel?: () => void;
  /** What has to be allowed first; the page shows it. */
  question?: Question;
}

export function ActionButton<T, V>(props: ActionProps<T, V>) {
  const { mutation, variables, children, confirm, danger, disabled, busy, onCancel, question } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  const start = () => mutation.mutate(variables);
  return (
    <>
      <button
        type="button"
        className={danger ? "danger" : undefined}
        disabled={disabled || question?.isOpen || mutation.isPending}
        aria-busy={mutation.isPending}
        onClick={() => (confirm ? dialog.current?.showModal() : start())}
      >
        {children}
      </button>
      {busy && mutation.isPending && (
        <span className="loading" role="status">
          {busy} …
        </span>
      )}
      {onCancel && mutation.isPending && (
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
      )}
      {confirm && (
        <dialog ref={dialog} aria-label={confirm}>
          <form
            method="dialog"
            onSubmit={(event) => {
              if ((event.nativeEvent as SubmitEvent).submitter?.getAttribute("value") === "yes") start();
            }}
          >
            <p>{confirm}</p>
            <div className="actions">
              <button value="no">No</button>
              <button value="yes" className={danger ? "danger" : "primary"}>
                {children}
              </button>
            </div>
          </form>
        </dialog>
      )}
      {mutation.error && !(question && questionsOf(mutation.error).length > 0) && (
        <ProblemNote error={mutation.error} />
      )}
    </>
  );
}
