// One job: state and actions, curves as they grow, logs, checkpoints, samples, results, and what it was started with.

import { useQueries } from "@tanstack/react-query";
import { lazy, Suspense, useMemo } from "react";
import { Link, useLocation } from "wouter";
import { client, dataOf } from "../../api/client";
import type { JobDetail } from "../../api/schema";
import { useLogin } from "../../api/login";
import { ActionButton } from "../../components/action";
import { ExternalLink } from "../../components/external";
import { formatBytes, formatDuration, formatNumber, formatTime } from "../../components/format";
import { loadOf, memoryOf, residentOf, useGpus } from "../../components/gpu_memory";
import { Empty, Loading } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Progress, StateBadge } from "../../components/state";
import { Facts, Table } from "../../components/table";
import { WaitNote } from "../../components/waiting";
import { hrefOf } from "../data";
import { JobActions } from "./actions";
import { Gate, Next } from "./after";
import { Checkpoints } from "./checkpoints";
import { Provenance } from "./provenance";
import { Samples } from "./samples";
import { Note } from "./note";
import { Charts, chartsOf, useCurveStyle, type EpochsPerStep } from "./charts";
import { AXES, placesOn, useCurves, type Axis } from "./curves";
import { JobLog } from "./log";
import { isOver, stepsOf, useJob, useJobEvents, useRetry } from "./queries";
import "./jobs.css";

const RunGraph = lazy(() => import("../chains/run_graph"));

export default function JobPage({ job }: { job: string }) {
  const query = useJob(job);
  const isEnded = isOver(query.data?.state);
  useJobEvents(job, isEnded);
  return (
    <Page title={query.data?.name ?? "Job"} actions={query.data && <Actions job={query.data} />}>
      <Queried query={query}>
        {(data) => (
          <div className="stack">
            {data.as_of != null && (
              <p className="stale" role="status">
                Prefect does not answer. This is the state of {formatTime(data.as_of)}.
              </p>
            )}
            <Summary job={data} />
            <Note job={data} />
            <Gate job={data} />
            <Next job={data} />
            <Suspense fallback={<Loading />}>
              <RunGraph run={data.id} />
            </Suspense>
            <Curves job={data} isEnded={isEnded} />
            <Section title="Log">
              <JobLog job={data.id} nodes={data.trainings.map((training) => training.node)} isEnded={isEnded} />
            </Section>
            <Checkpoints job={data} />
            <Samples job={data} />
            {data.nodes.length > 0 && <Results job={data} />}
            <Provenance job={data} />
            <Section title="Parameters">
              <pre className="json" tabIndex={0} aria-label="Parameters as JSON">
                {JSON.stringify(data.parameters, null, 2)}
              </pre>
            </Section>
          </div>
        )}
      </Queried>
    </Page>
  );
}

function Actions({ job }: { job: JobDetail }) {
  const { allows } = useLogin();
  if (!allows("run")) return null;
  return (
    <>
      <JobActions job={job.id} state={job.state} />
      {isOver(job.state) && <Retry job={job} />}
    </>
  );
}

function Retry({ job }: { job: JobDetail }) {
  const [, navigate] = useLocation();
  const retry = useRetry(job, (id) => navigate(`/jobs/${id}`));
  return (
    <ActionButton mutation={retry} variables={undefined} confirm="Start a new job with the same parameters?">
      Retry
    </ActionButton>
  );
}

/** What speaks against the trainings in their own numbers, and what to do about it. */
function Divergence({ job }: { job: JobDetail }) {
  return (job.divergence ?? []).map((warning) => (
    <div key={`${warning.node} ${warning.kind}`} className="banner" role="alert">
      <p>
        <strong>
          {warning.node}, step {formatNumber(warning.step)}: {warning.because}
        </strong>
      </p>
      <p>{warning.advice}</p>
    </div>
  ));
}

const GPUS_MS = 5000;

function Summary({ job }: { job: JobDetail }) {
  const isRunning = job.state === "running";
  const gpus = useGpus(GPUS_MS, isRunning);
  return (
    <Section title="State">
      <p aria-live="polite">
        <StateBadge state={job.state} detail={job.waiting ? "" : job.detail} />{" "}
        {job.waiting ? <WaitNote wait={job.waiting} /> : job.message}
      </p>
      <Divergence job={job} />
      {job.trainings.map((training) => (
        <div key={training.node}>
          <span>
            {training.node}: step {stepsOf(training)}
          </span>
          <Progress value={training.step} max={training.total_steps} label={`Steps of ${training.node}`} />
        </div>
      ))}
      <Facts
        facts={[
          ["Job id, for commands and REST", <code>{job.id}</code>],
          ["Group", job.group && <Link href={`/jobs?group=${encodeURIComponent(job.group)}`}>{job.group}</Link>],
          ["Stage", job.stage],
          ["Method", job.method],
          ["Backend", job.backend],
          ["Base model", job.base_model],
          ["Tenant", job.tenant],
          ["Loss", formatNumber(job.loss)],
          ["Created", formatTime(job.created)],
          ["Started", formatTime(job.started)],
          ["Time", formatDuration(job.seconds)],
          ...(job.left ?? []).map((part) => [`Time left of ${part.node}`, leftOf(part)] as const),
          ["Memory", isRunning ? residentOf(job.id, gpus.data) : ""],
          ["Load", isRunning ? loadOf(gpus.data) : ""],
          ["GPU memory", isRunning ? memoryOf(job.id, gpus.data) : ""],
          ["Attempts", String(job.attempts)],
          ["Tags", job.tags.filter((tag) => !isOwnTag(tag, job.id)).join(", ")],
          [
            "Run id, for Prefect and its folder",
            <>
              <code>{job.run_id}</code> {job.url && <ExternalLink url={job.url}>in Prefect</ExternalLink>}
            </>,
          ],
        ]}
      />
    </Section>
  );
}

/** Tags by which the service finds a run: other parts of the page show their values. */
const isOwnTag = (tag: string, job: string) =>
  ["job", "template", job].includes(tag) ||
  /^(chain|tenant|revision|digest|run|group|sweep|trace|continues):/.test(tag);

/** Remaining time of a training, and its basis. */
function leftOf(remaining: NonNullable<JobDetail["left"]>[number]): string {
  if (remaining.seconds == null) return "not known before its second step";
  return `${formatDuration(remaining.seconds)}, ${remaining.basis === "steps" ? "at the pace of its newest steps" : "by the plan"}`;
}

function Curves({ job, isEnded }: { job: JobDetail; isEnded: boolean }) {
  const { curves, state } = useCurves(job.id, isEnded);
  const epochs = useEpochs(job);
  const axes = (Object.keys(AXES) as Axis[]).filter((axis) =>
    curves.some((curve) => placesOn(axis, curve, epochs[curve.node] ?? null) != null),
  );
  const [style, controls] = useCurveStyle(chartsOf(curves), axes);
  const hasPoints = curves.some((curve) => curve.points.length > 0);
  return (
    <Section
      title="Curves"
      actions={
        <>
          {controls}
          <span className="quiet" role="status">
            {state}
          </span>
        </>
      }
    >
      {hasPoints ? (
        <Charts job={job.id} curves={curves} style={style} epochs={epochs} />
      ) : state === "connecting" ? (
        <p role="status">
          Reading the steps. A file that nobody has read yet takes some seconds for each million of them.
        </p>
      ) : (
        <Empty title="No step yet">
          <p>
            {isEnded ? "The job ended before its first step." : "The curves begin with the first step of the training."}
          </p>
        </Empty>
      )}
    </Section>
  );
}

/** How many epochs one step of each trainer is, where its length is given in epochs. */
function useEpochs(job: JobDetail): EpochsPerStep {
  const trainings = job.trainings.filter((training) => training.total_steps);
  const names = trainings.map((training) => training.node);
  const details = useQueries({
    queries: names.map((node) => ({
      queryKey: ["jobs", job.id, "nodes", node, "config"],
      queryFn: () => dataOf(client.GET("/api/v1/jobs/{job}/nodes/{node}", { params: { path: { job: job.id, node } } })),
      staleTime: Infinity,
      retry: false,
    })),
  });
  const pairs = trainings.flatMap((training, index) => {
    const config = details[index]?.data?.config as { hyperparameters?: Lengths } | undefined;
    const { epochs, max_steps: limit } = config?.hyperparameters ?? {};
    return epochs && !limit ? [[training.node, epochs / training.total_steps!] as const] : [];
  });
  const key = JSON.stringify(pairs);
  return useMemo(() => Object.fromEntries(JSON.parse(key) as [string, number][]), [key]);
}

interface Lengths {
  epochs?: number | null;
  max_steps?: number | null;
}

/** How each node ended and what it gave. */
function Results({ job }: { job: JobDetail }) {
  return (
    <Section title="Nodes">
      <Table
        caption="Nodes of the run"
        rows={job.nodes}
        rowKey={(node) => node.id}
        columns={[
          { title: "Node", cell: (node) => node.id },
          { title: "State", cell: (node) => <StateBadge state={node.state} /> },
          { title: "Time", numeric: true, cell: (node) => formatDuration(node.seconds) },
          {
            title: "Results",
            cell: (node) =>
              Object.entries(node.outputs ?? {}).map(([port, output]) => (
                <div key={port}>
                  <Link href={hrefOf({ run_id: job.run_id, node: node.id, port })}>{port}</Link>:{" "}
                  {output.rows != null && `${output.rows} rows, `}
                  {formatBytes(output.bytes)} <code title={output.sha256}>{output.sha256.slice(0, 12)}</code>
                </div>
              )),
          },
          { title: "Message", cell: (node) => node.message },
        ]}
      />
    </Section>
  );
}
