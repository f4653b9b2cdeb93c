// One evaluation: the gate, each benchmark with its interval and its flips, answers side by side.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatNumber, formatPercent, formatTime, titleOfResult } from "../../components/format";
import { Interval } from "../../components/interval";
import { Page, Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { Verdict } from "./verdict";

type Evaluation = components["schemas"]["Evaluation"];
type Benchmark = components["schemas"]["EvaluatedBenchmark"];

export default function EvaluationPage({ run, node }: { run: string; node: string }) {
  const query = useQuery({
    queryKey: ["evaluation", run, node],
    queryFn: () => dataOf(client.GET("/api/v1/evaluations/{run}/{node}", { params: { path: { run, node } } })),
  });
  return (
    <Page title="Evaluation" actions={<Link href="/evaluations">All evaluations</Link>}>
      <Queried query={query}>
        {(evaluation) => (
          <>
            <Gate evaluation={evaluation} />
            <Benchmarks evaluation={evaluation} />
            <Samples samples={evaluation.samples} />
            <Training training={evaluation.training} />
          </>
        )}
      </Queried>
    </Page>
  );
}

function Gate({ evaluation }: { evaluation: Evaluation }) {
  const { gate } = evaluation;
  return (
    <Section title="Gate">
      <p>
        <Verdict better={gate.better} cautions={gate.cautions} fewRows={gate.few_rows} />:{" "}
        {gate.better ? "the candidate may replace its baseline." : "the candidate is not deployed."}
      </p>
      <Lines title="Why not" lines={gate.reasons} />
      <Lines title="Looked at, and in order" lines={gate.passed} />
      <Lines title="Cautions" lines={gate.cautions} />
      <Lines title="Notes" lines={evaluation.notes} />
      <Facts
        facts={[
          [
            "Run",
            <Link href={`/jobs/${evaluation.run_id}`}>
              {titleOfResult({ run_name: evaluation.run_name, ended: evaluation.ended })}
            </Link>,
          ],
          ["Base model", evaluation.base_model],
          [
            "Compared with",
            evaluation.live ? `${evaluation.baseline} and ${evaluation.live}, which is live` : evaluation.baseline,
          ],
          ["Decides", gate.primary],
          ["Intervals", `${formatPercent(evaluation.confidence)}, ${formatNumber(evaluation.resamples)} resamples`],
          ["Ended", formatTime(evaluation.ended)],
          ["Registered as", <Versions names={evaluation.adapters} />],
          ["Adapter", <code>{evaluation.adapter_sha256.slice(0, 16)}</code>],
          ["Data", <Link href={`/data?run=${evaluation.run_id}`}>Results of this run</Link>],
        ]}
      />
    </Section>
  );
}

function Versions({ names }: { names: readonly string[] }) {
  if (names.length === 0) return "no version";
  return names.map((name) => (
    <Link key={name} href={`/adapters/${name}`}>
      {name}{" "}
    </Link>
  ));
}

function Lines({ title, lines = [] }: { title: string; lines?: readonly string[] }) {
  if (lines.length === 0) return null;
  return (
    <div className="lines">
      <h3>{title}</h3>
      <ul>
        {lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </div>
  );
}

const labelOf = (line: Benchmark) => `${line.name}/${line.set}`;

function Benchmarks({ evaluation }: { evaluation: Evaluation }) {
  const hasControl = evaluation.benchmarks.some((line) => line.control != null);
  return (
    <Section title="Benchmarks">
      <p className="quiet">
        A positive improvement is better, for every metric. The bar shows the interval around zero.
      </p>
      <Table
        cards
        caption="Benchmarks"
        rows={evaluation.benchmarks}
        rowKey={labelOf}
        columns={[
          {
            title: "Benchmark",
            cell: (line) => (
              <>
                {labelOf(line) === evaluation.gate.primary ? <strong>{labelOf(line)}</strong> : labelOf(line)}
                <div className="quiet">
                  {line.metric}; {line.higher_is_better ? "higher" : "lower"} is better
                </div>
              </>
            ),
          },
          { title: "Rows", numeric: true, cell: (line) => formatNumber(line.rows) },
          { title: "Baseline", numeric: true, cell: (line) => formatNumber(line.baseline) },
          { title: "Candidate", numeric: true, cell: (line) => formatNumber(line.candidate) },
          { title: "Improvement", cell: (line) => <Interval value={line.improvement} /> },
          { title: "Flips", cell: (line) => <Flips line={line} /> },
          ...(hasControl
            ? [
                {
                  title: "Better than control by",
                  cell: (line: Benchmark) => line.vs_control && <Interval value={line.vs_control} />,
                },
              ]
            : []),
          { title: "Right answers from", cell: (line) => line.gold },
        ]}
      />
    </Section>
  );
}

/** How many rows became better, worse, or stayed: as numbers, and as a bar. */
function Flips({ line }: { line: Benchmark }) {
  const { better, worse, equal } = line.flips;
  const total = better + worse + equal || 1;
  const width = 120;
  return (
    <>
      {better} better, {worse} worse, {equal} equal
      <svg width={width} height="8" aria-hidden="true" className="flips">
        <rect width={(width * better) / total} height="8" fill="var(--good)" />
        <rect x={(width * better) / total} width={(width * equal) / total} height="8" fill="var(--line)" />
        <rect x={(width * (better + equal)) / total} width={(width * worse) / total} height="8" fill="var(--bad)" />
      </svg>
    </>
  );
}

function Samples({ samples }: { samples: Evaluation["samples"] }) {
  if (samples.length === 0) return null;
  return (
    <Section title="Answers side by side">
      {samples.map((sample, index) => (
        <article key={index}>
          <h3 className="cell-text">{sample.prompt}</h3>
          <div className="side-by-side">
            {(["gold", "baseline", "candidate"] as const).map((side) => (
              <div key={side}>
                <h4>{side === "gold" ? "Right answer" : side === "baseline" ? "Baseline" : "Candidate"}</h4>
                <p className="cell-text">{sample[side] || "(nothing)"}</p>
              </div>
            ))}
          </div>
        </article>
      ))}
    </Section>
  );
}

const TRAINED = ["stage", "method", "backend", "steps", "loss_at_start", "loss_at_end", "seconds"];

function Training({ training }: { training: Evaluation["training"] }) {
  const trainers = Object.entries(training as Record<string, Record<string, unknown>>);
  if (trainers.length === 0) return null;
  return (
    <Section title="Training">
      <Table
        caption="Training"
        rows={TRAINED}
        rowKey={(name) => name}
        columns={[
          { title: "", cell: (name) => name.replaceAll("_", " ") },
          ...trainers.map(([title, facts]) => ({
            title,
            numeric: true,
            cell: (name: string) => shownFact(facts[name]),
          })),
        ]}
      />
    </Section>
  );
}

const shownFact = (value: unknown): string => (typeof value === "number" ? formatNumber(value) : String(value ?? ""));
