// What runs, what is live, what is wrong, what to do next.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import { formatBytes, formatDuration, formatNumber, formatTime } from "../../components/format";
import { MIB, useGpus } from "../../components/gpu_memory";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Progress, StateBadge } from "../../components/state";
import { Table } from "../../components/table";
import { trainerOf } from "../jobs/queries";
import { Checks, isProblem, useDoctor } from "../settings/doctor";

const NEWEST = 8;

export default function OverviewPage() {
  const login = useLogin();
  return (
    <Page title="Overview">
      <NewestJobs />
      <div className="columns">
        <LiveAdapters />
        <Machine />
      </div>
      {login.tenant === "" && <Problems />}
    </Page>
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
                      {formatNumber(job.step)}
                      {job.total_steps ? ` of ${formatNumber(job.total_steps)}` : ""}{" "}
                      <Progress value={job.step} max={job.total_steps} label={`Steps of ${job.name}`} />
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
              caption="Live adapters"
              rows={live}
              rowKey={(row) => String(row.name)}
              columns={[
                {
                  title: "Version",
                  cell: (row) => <Link href={`/adapters/${String(row.name)}`}>{String(row.name)}</Link>,
                },
                { title: "Base", cell: (row) => String(row.base ?? "") },
                { title: "Evaluated", cell: (row) => (row.evaluated ? "yes" : "no") },
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
        {({ state, gpus: found }) =>
          found.length === 0 ? (
            <p>{state === "no GPU" ? "No GPU: trainings run on the CPU." : state}</p>
          ) : (
            <ul>
              {found.map((gpu) => (
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

function Problems() {
  const doctor = useDoctor();
  return (
    <Section title="Problems" actions={<Link href="/settings">Doctor</Link>}>
      <Queried query={doctor}>
        {({ checks }) => {
          const problems = checks.filter(isProblem);
          return problems.length === 0 ? <p>The doctor finds no problem.</p> : <Checks checks={problems} />;
        }}
      </Queried>
    </Section>
  );
}
