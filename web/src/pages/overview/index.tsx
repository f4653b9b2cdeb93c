// Overview: running jobs, live adapters, problems, next steps.

import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import { formatBytes, formatDuration, formatNumber, formatTime, titleOfResult } from "../../components/format";
import { loadOf, MIB, useGpus } from "../../components/gpu_memory";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Progress, StateBadge } from "../../components/state";
import { Table } from "../../components/table";
import { WaitNote } from "../../components/waiting";
import { Verdict, VerdictOf, useNewestEvaluations } from "../evaluations/verdict";
import { stepsOf, trainerOf, useJob } from "../jobs/queries";
import { Checks, isProblem, useDoctor } from "../settings/doctor";
import { Starts } from "./starts";

const NEWEST = 8;

export default function OverviewPage() {
  const login = useLogin();
  return (
    <Page title="Overview">
      {login.allows("run") && <Starts />}
      <Running />
      <Waiting />
      <NewestJobs />
      <div className="columns">
        <LiveAdapters />
        <Machine />
      </div>
      <Problems withDoctor={login.tenant === ""} />
    </Page>
  );
}

const RunningCurve = lazy(() => import("./running"));
const MOST_CURVES = 2;

const useStates = (state: "running" | "pending") =>
  useQuery({
    queryKey: ["jobs", state],
    queryFn: () => dataOf(client.GET("/api/v1/jobs", { params: { query: { state, limit: 50 } as object } })),
    refetchInterval: 3000,
  });

/** Trainings that run now, with their loss. */
function Running() {
  const training = useStates("running").data?.jobs.filter((job) => job.step) ?? [];
  if (training.length === 0) return null;
  return (
    <Section title="Running">
      {training.slice(0, MOST_CURVES).map((job) => (
        <div key={job.id}>
          <p>
            <Link href={`/jobs/${job.id}`}>{job.name}</Link> <StateBadge state={job.state} detail={job.detail} />{" "}
            {trainerOf(job)}
            {formatNumber(job.step)}
            {job.total_steps ? ` of ${formatNumber(job.total_steps)} steps` : " steps"}
          </p>
          <Warnings job={job.id} />
          <Suspense fallback={null}>
            <RunningCurve job={job.id} />
          </Suspense>
        </div>
      ))}
    </Section>
  );
}

/** What speaks against a running training in its own numbers. */
function Warnings({ job }: { job: string }) {
  return (useJob(job).data?.divergence ?? []).map((warning) => (
    <p key={`${warning.node} ${warning.kind}`} className="banner" role="alert">
      {warning.node}, step {formatNumber(warning.step)}: {warning.because} {warning.advice}
    </p>
  ));
}

/** Pending jobs in the order of their requests, with reasons. */
function Waiting() {
  const running = useStates("running").data?.jobs.filter((job) => job.waiting) ?? [];
  const waiting = [...(useStates("pending").data?.jobs ?? []), ...running].reverse();
  if (waiting.length === 0) return null;
  return (
    <Section title="Waiting">
      <Table
        cards
        caption="Jobs that wait, the first one first"
        rows={waiting}
        rowKey={(job) => job.id}
        columns={[
          { title: "Job", cell: (job) => <Link href={`/jobs/${job.id}`}>{job.name}</Link> },
          {
            title: "State",
            cell: (job) => <StateBadge state={job.state} detail={job.waiting ? "" : job.detail} />,
          },
          { title: "Reason", cell: (job) => (job.waiting ? <WaitNote wait={job.waiting} /> : job.message) },
          { title: "Since", cell: (job) => formatTime(job.created) },
        ]}
      />
    </Section>
  );
}

function NewestJobs() {
  const jobs = useQuery({
    queryKey: ["jobs", "newest"],
    queryFn: () => dataOf(client.GET("/api/v1/jobs", { params: { query: { limit: NEWEST } } })),
    refetchInterval: 3000,
  });
  return (
    <Section title="Newest jobs" actions={<Link href="/jobs">All jobs</Link>}>
      <Queried query={jobs}>
        {({ jobs }) =>
          jobs.length === 0 ? (
            <Empty title="No job yet">
              <p>
                Start from a template on <Link href="/chains">Chains</Link>, or train on a file on{" "}
                <Link href="/jobs/new">New job</Link>.
              </p>
            </Empty>
          ) : (
            <Table
              cards
              caption="The newest jobs"
              rows={jobs}
              rowKey={(job) => job.id}
              columns={[
                { title: "Job", cell: (job) => <Link href={`/jobs/${job.id}`}>{job.name}</Link> },
                { title: "State", cell: (job) => <StateBadge state={job.state} detail={job.detail} /> },
                {
                  title: "Step",
                  numeric: true,
                  cell: (job) => (
                    <>
                      {trainerOf(job)}
                      {stepsOf(job)} <Progress value={job.step} max={job.total_steps} label={`Steps of ${job.name}`} />
                    </>
                  ),
                },
                { title: "Loss", numeric: true, cell: (job) => formatNumber(job.loss) },
                { title: "Backend", cell: (job) => job.backend },
                { title: "Created", cell: (job) => formatTime(job.created) },
                { title: "Took", numeric: true, cell: (job) => formatDuration(job.seconds) },
              ]}
            />
          )
        }
      </Queried>
    </Section>
  );
}

function LiveAdapters() {
  const adapters = useQuery({
    queryKey: ["adapters", "live"],
    queryFn: () => dataOf(client.GET("/api/v1/adapters")),
    refetchInterval: 15_000,
  });
  const evaluations = useNewestEvaluations().data?.evaluations ?? [];
  return (
    <Section title="Live adapters" actions={<Link href="/adapters">All adapters</Link>}>
      <Queried query={adapters}>
        {({ rows }) => {
          const live = rows.filter((row) => row.live);
          return live.length === 0 ? (
            <Empty title="No adapter is live">
              <p>A chain with a deployer makes one live, or you promote a version.</p>
            </Empty>
          ) : (
            <Table
              cards
              caption="Live adapters"
              rows={live}
              rowKey={(row) => String(row.name)}
              columns={[
                {
                  title: "Version",
                  cell: (row) => <Link href={`/adapters/${String(row.name)}`}>{String(row.name)}</Link>,
                },
                { title: "Base", cell: (row) => String(row.base ?? "") },
                { title: "Evaluation", cell: (row) => <VerdictOf version={row} evaluations={evaluations} /> },
              ]}
            />
          );
        }}
      </Queried>
    </Section>
  );
}

function Machine() {
  const gpus = useGpus(5000);
  const backends = useQuery({
    queryKey: ["backends"],
    queryFn: () => dataOf(client.GET("/api/v1/backends", { params: { query: { imports: false } } })),
    refetchInterval: 60_000,
  });
  return (
    <Section title="This machine" actions={<Link href="/gpus">GPUs</Link>}>
      <Queried query={gpus}>
        {({ state, gpus: gpuList }) =>
          gpuList.length === 0 ? (
            <p>
              {state === "no GPU" ? "No GPU: trainings run on the CPU." : state}{" "}
              {gpus.data?.machine && `Load ${loadOf(gpus.data)}.`}
            </p>
          ) : (
            <ul>
              {gpuList.map((gpu) => (
                <li key={gpu.index}>
                  GPU {gpu.index}, {gpu.name}: {formatBytes(gpu.memory_used_mb * MIB)} of{" "}
                  {formatBytes(gpu.memory_total_mb * MIB)}
                </li>
              ))}
            </ul>
          )
        }
      </Queried>
      <Queried query={backends}>
        {({ rows }) => (
          <p>
            <Link href="/backends">Backends</Link> that are ready:{" "}
            {rows
              .filter((row) => row.available && row.fits)
              .map((row) => row.name)
              .join(", ") || "none"}
          </p>
        )}
      </Queried>
    </Section>
  );
}

function Problems({ withDoctor }: { withDoctor: boolean }) {
  return (
    <Section title="Problems" actions={withDoctor && <Link href="/settings">Doctor</Link>}>
      <RefusedAdapters />
      {withDoctor && <DoctorProblems />}
    </Section>
  );
}

function DoctorProblems() {
  const doctor = useDoctor();
  return (
    <Queried query={doctor}>
      {({ checks }) => {
        const problems = checks.filter(isProblem);
        return problems.length === 0 ? <p>The doctor finds no problem.</p> : <Checks checks={problems} />;
      }}
    </Queried>
  );
}

const SHOWN_S = 7 * 24 * 3600;

/** Evaluations of the last days that refused: their adapters were not deployed. */
function RefusedAdapters() {
  const evaluations = useNewestEvaluations();
  const refusals = (evaluations.data?.evaluations ?? []).filter(
    (evaluation) => evaluation.better === false && evaluation.ended > evaluations.dataUpdatedAt / 1000 - SHOWN_S,
  );
  return refusals.length === 0 ? null : (
    <ul>
      {refusals.map((evaluation) => (
        <li key={`${evaluation.run_id}/${evaluation.node}`}>
          <Link href={`/evaluations/${evaluation.run_id}/${encodeURIComponent(evaluation.node)}`}>
            {titleOfResult(evaluation)}
          </Link>
          : <Verdict better={evaluation.better} fewRows={evaluation.few_rows} /> {evaluation.reasons[0]}{" "}
          <span className="quiet">{formatTime(evaluation.ended)}</span>
        </li>
      ))}
    </ul>
  );
}
