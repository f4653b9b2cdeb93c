// Estimate of a job before it starts: rows, steps, memory, time, reused results, and refusals.

import { client, dataOf, type ProblemReason } from "../../api/client";
import type { ChainPlan } from "../../api/schema";
import { useCancelable, type Cancelable } from "../../components/cancelable";
import { formatBytes, formatDuration, formatNumber } from "../../components/format";
import { Loading, ProblemNote, ReasonList, type FieldOf } from "../../components/notes";
import { Section } from "../../components/page";
import { Table } from "../../components/table";

type Values = Record<string, unknown>;
export type Planning = Cancelable<ChainPlan, Values>;

export const usePlan = (): Planning =>
  useCancelable((draft: Values, signal) =>
    dataOf(client.POST("/api/v1/plan", { body: { target: "training-job", parameters: draft } as never, signal })),
  );

export function Estimate({ draft, plan, fieldOf }: { draft: Values; plan: Planning; fieldOf: FieldOf }) {
  return (
    <Section
      title="Estimate"
      actions={
        <button
          type="button"
          disabled={!draft.dataset || plan.isPending}
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
        <ProblemNote error={plan.error} fieldOf={fieldOf} />
      ) : plan.data ? (
        <PlannedNodes plan={plan.data} fieldOf={fieldOf} />
      ) : (
        <p className="quiet">Steps, memory and time of the job, and whether this machine would refuse it.</p>
      )}
    </Section>
  );
}

/** What a run would do, node by node. */
export function PlannedNodes({ plan, fieldOf }: { plan: ChainPlan; fieldOf?: FieldOf }) {
  const refusals = plan.refusals as unknown as (ProblemReason & { line: string })[];
  const asks = plan.nodes.some((node) =>
    node.estimate.basis.some((note) => note.startsWith("few rows: ") || note.startsWith("small base: ")),
  );
  const refusedLines = new Set(refusals.map((refusal) => refusal.line));
  return (
    <div aria-live="polite">
      {refusals.length > 0 ? (
        <div className="problem">
          <p>
            <strong>This machine would refuse it.</strong>
          </p>
          <ReasonList reasons={refusals} fieldOf={fieldOf} />
        </div>
      ) : (
        <p>
          {asks ? "This machine would accept it, and ask first: the notes say why." : "This machine would accept it."}
        </p>
      )}
      <Table
        caption="Estimate of each node"
        rows={plan.nodes}
        rowKey={(node) => node.id}
        columns={[
          { title: "Node", cell: (node) => `${node.id}${node.reused ? ", reused" : ""}` },
          { title: "Rows", numeric: true, cell: ({ estimate }) => formatNumber(estimate.rows) },
          { title: "Steps", numeric: true, cell: ({ estimate }) => formatNumber(estimate.steps) },
          { title: "Tokens", numeric: true, cell: ({ estimate }) => formatNumber(estimate.tokens) },
          { title: "Trainable", numeric: true, cell: ({ estimate }) => formatNumber(estimate.trainable_parameters) },
          { title: "Memory", numeric: true, cell: ({ estimate }) => formatBytes(estimate.memory_bytes) },
          { title: "Disk", numeric: true, cell: ({ estimate }) => formatBytes(estimate.disk_bytes) },
          { title: "Time", numeric: true, cell: ({ estimate }) => formatDuration(estimate.seconds) },
          { title: "Queue", numeric: true, cell: ({ estimate }) => formatDuration(estimate.queue_s) },
          {
            title: "Notes",
            cell: (node) =>
              [refusedLines.has(node.problem ?? "") ? "" : node.problem, ...(node.advice ?? []), ...node.estimate.basis]
                .filter(Boolean)
                .map((text, index) => <div key={index}>{text}</div>),
          },
        ]}
      />
      {plan.decisions.map((decision) => (
        <section key={decision.node} aria-label={`Method of ${decision.node}`}>
          <p>
            {decision.node}: method auto is {decision.rungs.at(-1)?.method} here, by{" "}
            {formatBytes(decision.memory_bytes)} of {decision.device} ({decision.memory_from}).
          </p>
          <ul>
            {decision.rungs.map((rung, index) => (
              <li key={index}>
                {[rung.method, rung.knobs].filter(Boolean).join(", ")}:{" "}
                {rung.needed_bytes != null && `needs ${formatBytes(rung.needed_bytes)}, `}
                {rung.fits ? "fits" : rung.why}
              </li>
            ))}
            {decision.changes.map((change) => (
              <li key={change}>changed: {change}</li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}
