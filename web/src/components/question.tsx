// A run that is refused unless its user allows it, such as a training on few rows: the reasons, and the box that allows it.

import { useId, useState } from "react";
import { Problem, type ProblemReason } from "../api/client";
import { ReasonList, type FieldOf } from "./notes";

/** Codes of the reasons that `yes` of a request lifts. */
const LIFTED = ["E-FEW-ROWS", "E-SMALL-BASE"];

/** The reasons of a refusal, if `yes` lifts every one of them; else none. */
export function questionsOf(error: unknown): readonly ProblemReason[] {
  if (!(error instanceof Problem) || error.errors.length === 0) return [];
  return error.errors.every((reason) => LIFTED.includes(reason.code)) ? error.errors : [];
}

export interface Question {
  /** Why a run is refused without `yes`; empty where nothing is to be allowed. */
  reasons: readonly ProblemReason[];
  /** Whether the user allows it. */
  yes: boolean;
  setYes: (yes: boolean) => void;
  /** Whether a start would be refused as it is. */
  isOpen: boolean;
}

/** The question with these reasons. An answer holds for them: other reasons are asked about again. */
export function useQuestion(reasons: readonly ProblemReason[]): Question {
  const [answer, setAnswer] = useState<{ key: string; yes: boolean }>({ key: "", yes: false });
  const key = JSON.stringify(reasons.map((reason) => [reason.node, reason.because]));
  const yes = reasons.length > 0 && answer.key === key && answer.yes;
  return { reasons, yes, setYes: (next) => setAnswer({ key, yes: next }), isOpen: reasons.length > 0 && !yes };
}

export function QuestionNote({ question, fieldOf }: { question: Question; fieldOf?: FieldOf }) {
  const id = useId();
  if (question.reasons.length === 0) return null;
  return (
    <div className="question" role="group" aria-label="To be allowed">
      <p>
        <strong>This runs only if you allow it:</strong>
      </p>
      <div className="question-reasons" role="region" aria-label="Reasons" tabIndex={0}>
        <ReasonList reasons={question.reasons} fieldOf={fieldOf} />
      </div>
      <p>
        <input
          id={id}
          type="checkbox"
          checked={question.yes}
          onChange={(event) => question.setYes(event.target.checked)}
        />{" "}
        <label htmlFor={id}>Run anyway</label>
      </p>
    </div>
  );
}
