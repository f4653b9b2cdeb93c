// What comes after a job: why a gate deployed nothing, and the commands that use the result.

import { Link } from "wouter";
import type { JobDetail } from "../../api/schema";
import { Section } from "../../components/page";

interface ClosedGate {
  node: string;
  evaluator?: string;
  verdict: string;
  reasons: readonly string[];
  passed?: readonly string[];
  do?: string;
}

/** Fields of a job that an older service does not give. */
type WithEnd = JobDetail & { gate?: ClosedGate | null; next?: readonly string[] };

/** The reasons of a gate that refused, with the evaluation that has the numbers. */
export function Gate({ job }: { job: JobDetail }) {
  const { gate } = job as WithEnd;
  if (!gate) return null;
  return (
    <Section title="Not deployed">
      <p>
        {gate.node}: {gate.verdict}. What was live stays live.
      </p>
      <ul>
        {gate.reasons.map((reason) => (
          <li key={reason}>{reason}</li>
        ))}
      </ul>
      {gate.passed && gate.passed.length > 0 && (
        <details>
          <summary>Checks that passed</summary>
          <ul>
            {gate.passed.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </details>
      )}
      {gate.do && <p>{gate.do}</p>}
      {gate.evaluator && (
        <p>
          <Link href={`/evaluations/${job.run_id}/${encodeURIComponent(gate.evaluator)}`}>
            The evaluation, row by row
          </Link>
        </p>
      )}
    </Section>
  );
}

/** Commands with the names of this job, to be copied. */
export function Next({ job }: { job: JobDetail }) {
  const { next } = job as WithEnd;
  if (!next?.length) return null;
  return (
    <Section title="Next">
      <ul className="commands">
        {next.map((command) => (
          <li key={command}>
            <code>{command}</code>{" "}
            <button
              type="button"
              aria-label={`Copy ${command}`}
              onClick={() => void navigator.clipboard?.writeText(command)}
            >
              Copy
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}
