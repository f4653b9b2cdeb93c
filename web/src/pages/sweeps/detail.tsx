// One sweep: its trials, the best first; stop it, continue it, take the chain of its best trial.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { SweepReport, Trial } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { formatNumber } from "../../components/format";
import { Empty, ProblemNote } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Progress, StateBadge } from "../../components/state";
import { Facts, Table } from "../../components/table";

export default function SweepPage({ name }: { name: string }) {
  const queries = useQueryClient();
  const login = useLogin();
  const path = { name };
  const sweep = useQuery({
    queryKey: ["sweeps", name],
    queryFn: () => dataOf(client.GET("/api/v1/sweeps/{name}", { params: { path } })),
    refetchInterval: 3000,
  });
  const onSuccess = () => queries.invalidateQueries({ queryKey: ["sweeps"] });
  const stop = useMutation({
    mutationFn: () => client.POST("/api/v1/sweeps/{name}/stop", { params: { path } } as never),
    onSuccess,
  });
  const resume = useMutation({
    mutationFn: () => client.POST("/api/v1/sweeps", { body: { continued: name } as never }),
    onSuccess,
  });
  const running = sweep.data?.is_running;
  return (
    <Page
      title={`Sweep ${name}`}
      actions={
        login.allows("run") &&
        sweep.data &&
        (running ? (
          <ActionButton
            mutation={stop}
            variables={undefined}
            danger
            confirm="End this sweep? Its trainings save first."
          >
            Stop
          </ActionButton>
        ) : (
          hasMore(sweep.data) && (
            <ActionButton mutation={resume} variables={undefined}>
              Continue
            </ActionButton>
          )
        ))
      }
    >
      <Queried query={sweep}>
        {(data) => (
          <>
            <Section title="Progress">
              <Facts facts={factsOf(data)} />
              {data.is_running && <Progress value={data.trials.length} max={data.num_trials} label="Trials" />}
            </Section>
            <Trials sweep={data} />
            {data.best && <BestChain name={name} />}
          </>
        )}
      </Queried>
    </Page>
  );
}

const ONGOING = ["running", "paused"];

/** Whether a sweep that was stopped has trials to begin or to end. */
const hasMore = (sweep: SweepReport) =>
  sweep.trials.length < sweep.num_trials || sweep.trials.some((trial) => ONGOING.includes(trial.state));

function factsOf(sweep: SweepReport): [string, React.ReactNode][] {
  const whole = sweep.num_whole_steps;
  return [
    ["State", <StateBadge state={sweep.is_running ? "running" : "ended"} />],
    ["Run", sweep.run_id && <Link href={`/jobs/${sweep.run_id}`}>{sweep.run_id.slice(0, 8)}</Link>],
    ["Metric", `${sweep.metric}, the ${sweep.direction === "max" ? "highest" : "lowest"} is best`],
    ["Scheduler", sweep.rungs.length ? `${sweep.scheduler}, rungs at ${sweep.rungs.join(", ")}` : sweep.scheduler],
    ["Trials", `${formatNumber(sweep.trials.length)} of ${formatNumber(sweep.num_trials)}`],
    ["Steps", whole ? `${formatNumber(sweep.num_steps)} of ${formatNumber(whole)}` : formatNumber(sweep.num_steps)],
  ];
}

function Trials({ sweep }: { sweep: SweepReport }) {
  if (sweep.trials.length === 0) {
    return (
      <Empty title="No trial has begun yet">
        {sweep.is_running ? (
          <p>
            The first begins when a worker takes <Link href={`/jobs/${sweep.run_id}`}>its run</Link>, which has the log.
          </p>
        ) : (
          <p>The sweep was stopped before. Press Continue.</p>
        )}
      </Empty>
    );
  }
  const sign = sweep.direction === "max" ? -1 : 1;
  const valueOf = (trial: Trial) => (trial.value == null ? Infinity : sign * trial.value);
  const rows = [...sweep.trials].sort((a, b) => valueOf(a) - valueOf(b) || b.steps - a.steps || a.number - b.number);
  const settings = [...new Set(rows.flatMap((trial) => Object.keys(trial.params)))].sort();
  return (
    <Section title="Trials">
      <Table
        caption="Trials, the best first"
        rows={rows}
        rowKey={(trial) => trial.number}
        columns={[
          {
            title: "Trial",
            cell: (trial) => (trial.number === sweep.best?.number ? `${trial.number}, best` : trial.number),
          },
          { title: "State", cell: (trial) => <StateBadge state={trial.state} /> },
          ...settings.map((path) => ({
            title: path,
            numeric: true,
            cell: (trial: Trial) => {
              const value = trial.params[path];
              return typeof value === "number" ? formatNumber(value) : String(value ?? "");
            },
          })),
          { title: "Steps", numeric: true, cell: (trial) => formatNumber(trial.steps) },
          {
            title: "At rungs",
            cell: (trial) =>
              Object.entries(trial.found ?? {})
                .map(([step, value]) => `${step}: ${formatNumber(value)}`)
                .join(", "),
          },
          { title: sweep.metric, numeric: true, cell: (trial) => formatNumber(trial.value) },
          { title: "Message", cell: (trial) => [trial.code, trial.message].filter(Boolean).join(" ") },
        ]}
      />
    </Section>
  );
}

function BestChain({ name }: { name: string }) {
  const best = useMutation({
    mutationFn: () =>
      dataOf(client.GET("/api/v1/sweeps/{name}", { params: { path: { name }, query: { best: true } } })),
  });
  return (
    <Section
      title="Chain of the best trial"
      actions={
        <button type="button" disabled={best.isPending} onClick={() => best.mutate()}>
          Show
        </button>
      }
    >
      {best.error && <ProblemNote error={best.error} />}
      {best.data && (
        <pre tabIndex={0} aria-label="Chain of the best trial">
          {best.data.best_chain}
        </pre>
      )}
    </Section>
  );
}
