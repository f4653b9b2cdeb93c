// Estimate of a run of the draft: rows, tokens, steps, memory and time of each node, and reused results.

import { client, dataOf } from "../../../api/client";
import { useCancelable } from "../../../components/cancelable";
import { Loading, ProblemNote } from "../../../components/notes";
import { Section } from "../../../components/page";
import { PlannedNodes } from "../../jobs/estimate";
import type { Draft } from "./draft";

export function ChainEstimate({ draft }: { draft: Draft }) {
  const plan = useCancelable((target: Draft, signal) =>
    dataOf(client.POST("/api/v1/plan", { body: { target } as never, signal })),
  );
  return (
    <Section
      title="Estimate"
      actions={
        <button
          type="button"
          disabled={draft.nodes.length === 0 || plan.isPending}
          aria-busy={plan.isPending}
          onClick={() => plan.mutate(draft)}
        >
          Estimate
        </button>
      }
    >
      {plan.isPending ? (
        <Loading label="Planning" onCancel={plan.cancel} />
      ) : plan.error ? (
        <ProblemNote error={plan.error} />
      ) : plan.data ? (
        <>
          {plan.variables !== draft && <p className="stale">The draft has changed since this estimate.</p>}
          <PlannedNodes plan={plan.data} />
        </>
      ) : (
        <p className="quiet">Rows, steps, memory and time of each node, and which results are there already.</p>
      )}
    </Section>
  );
}
