// Every job, the newest first, with filters that are part of the address.

import { useState } from "react";
import { Link, useLocation, useSearchParams } from "wouter";
import type { Job, JobList } from "../../api/schema";
import { useLogin } from "../../api/login";
import { formatDuration, formatNumber, formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried } from "../../components/page";
import { Pager, useCursor } from "../../components/pager";
import { Progress, StateBadge } from "../../components/state";
import { Table } from "../../components/table";
import { WaitNote } from "../../components/waiting";
import { stepsOf, trainerOf, useJob, useJobs, type JobFilter } from "./queries";
import "./jobs.css";

const MOST_COMPARED = 5;
const FILTERS = {
  state: ["pending", "running", "paused", "completed", "failed", "canceled"],
  stage: ["cpt", "sft", "reward", "dpo", "kto", "ppo", "grpo", "distill"],
  backend: ["native", "trl", "unsloth", "axolotl", "deepspeed", "mlx", "llamacpp", "script"],
} as const;

export default function JobsPage() {
  const [search, setSearch] = useSearchParams();
  const [selection, setSelection] = useState<readonly string[]>([]);
  const [, navigate] = useLocation();
  const { allows } = useLogin();
  const filter = Object.fromEntries(
    ["state", "stage", "backend", "text", "group"].flatMap((name) =>
      search.get(name) ? [[name, search.get(name)]] : [],
    ),
  ) as JobFilter;
  const pages = useCursor(JSON.stringify(filter));
  const jobs = useJobs({ ...filter, ...(pages.cursor ? { cursor: pages.cursor } : {}) });
  const setFilter = (name: string, value: string) =>
    setSearch(
      (previous) => {
        const next = new URLSearchParams(previous);
        if (value) next.set(name, value);
        else next.delete(name);
        return next;
      },
      { replace: true },
    );
  const isFiltered = Object.keys(filter).length > 0;
  return (
    <Page
      title="Jobs"
      actions={
        <>
          <button
            type="button"
            disabled={selection.length < 2}
            onClick={() => navigate(`/jobs/compare?${selection.map((id) => `job=${id}`).join("&")}`)}
          >
            Compare {selection.length > 0 && selection.length}
          </button>
          {allows("run") && (
            <Link href="/jobs/new" className="button primary">
              New job
            </Link>
          )}
        </>
      }
    >
      <search className="filters">
        <div>
          <label htmlFor="text">Text</label>
          <input
            id="text"
            type="search"
            maxLength={200}
            placeholder="name, id, model, message"
            value={filter.text ?? ""}
            onChange={(event) => setFilter("text", event.target.value)}
          />
        </div>
        <div>
          <label htmlFor="group">Group</label>
          <input
            id="group"
            type="search"
            maxLength={63}
            list="groups"
            placeholder="all"
            value={search.get("group") ?? ""}
            onChange={(event) => setFilter("group", event.target.value.trim().toLowerCase())}
          />
          <datalist id="groups">
            {groupsOf(jobs.data?.jobs ?? []).map((name) => (
              <option key={name}>{name}</option>
            ))}
          </datalist>
        </div>
        {Object.entries(FILTERS).map(([name, choices]) => (
          <div key={name}>
            <label htmlFor={name}>{name.charAt(0).toUpperCase() + name.slice(1)}</label>
            <select id={name} value={search.get(name) ?? ""} onChange={(event) => setFilter(name, event.target.value)}>
              <option value="">all</option>
              {choices.map((choice) => (
                <option key={choice}>{choice}</option>
              ))}
            </select>
          </div>
        ))}
      </search>
      <Queried query={jobs}>
        {(data) => (
          <>
            {data.as_of != null && (
              <p className="stale" role="status">
                Prefect does not answer. These are the states of {formatTime(data.as_of)}.
              </p>
            )}
            {data.jobs.length === 0 ? (
              <NoJobs isFiltered={isFiltered} onClear={() => setSearch({})} />
            ) : (
              <GroupedJobs jobList={data} selection={selection} onChoose={setSelection} />
            )}
            <Pager
              label="jobs"
              range={pages.page || data.next ? `Page ${pages.page + 1}` : ""}
              hasPrevious={pages.page > 0}
              hasNext={Boolean(data.next)}
              onPrevious={pages.previous}
              onNext={() => pages.next(data.next!)}
            />
          </>
        )}
      </Queried>
    </Page>
  );
}

function NoJobs({ isFiltered, onClear }: { isFiltered: boolean; onClear: () => void }) {
  if (isFiltered)
    return (
      <Empty title="No job matches">
        <button type="button" onClick={onClear}>
          Show all jobs
        </button>
      </Empty>
    );
  return (
    <Empty title="No job yet">
      <p>
        <Link href="/jobs/new">Train on a file</Link>, or start from a template on <Link href="/chains">Chains</Link>.
      </p>
    </Empty>
  );
}

interface JobTableProps {
  jobList: JobList;
  selection: readonly string[];
  onChoose: (selection: readonly string[]) => void;
  caption?: string;
}

/** The groups of these jobs, that of the newest job first. */
const groupsOf = (jobs: readonly Job[]): string[] => [
  ...new Set(jobs.flatMap((job) => (job.group ? [job.group] : []))),
];

/** Jobs of a group are together, where their newest one is in the order of all; the others are one by one. */
function GroupedJobs({ jobList, selection, onChoose }: JobTableProps) {
  const groups = groupsOf(jobList.jobs);
  if (groups.length === 0) return <JobTable jobList={jobList} selection={selection} onChoose={onChoose} />;
  const single = jobList.jobs.filter((job) => !job.group);
  return (
    <>
      {groups.map((name) => {
        const jobs = jobList.jobs.filter((job) => job.group === name);
        return (
          <section key={name} aria-label={`Group ${name}`}>
            <h2 className="group-title">
              <Link href={`/jobs?group=${encodeURIComponent(name)}`}>{name}</Link>{" "}
              <span className="quiet">{jobs.length === 1 ? "1 job" : `${jobs.length} jobs`}</span>{" "}
              {jobs.length > 1 && (
                <Link href={compareOf(jobs)} className="button">
                  Compare {jobs.length > MOST_COMPARED ? `the newest ${MOST_COMPARED} of ` : ""}
                  {name}
                </Link>
              )}
            </h2>
            <JobTable
              jobList={{ ...jobList, jobs }}
              selection={selection}
              onChoose={onChoose}
              caption={`Jobs of ${name}`}
            />
          </section>
        );
      })}
      {single.length > 0 && (
        <section aria-label="Jobs without a group">
          <h2 className="group-title">Without a group</h2>
          <JobTable jobList={{ ...jobList, jobs: single }} selection={selection} onChoose={onChoose} />
        </section>
      )}
    </>
  );
}

const compareOf = (jobs: readonly Job[]): string =>
  `/jobs/compare?${jobs
    .slice(0, MOST_COMPARED)
    .map((job) => `job=${job.id}`)
    .join("&")}`;

function JobTable({ jobList, selection, onChoose, caption = "Jobs, the newest first" }: JobTableProps) {
  const toggle = (job: Job) =>
    onChoose(selection.includes(job.id) ? selection.filter((id) => id !== job.id) : [...selection, job.id]);
  return (
    <Table
      cards
      caption={caption}
      rows={jobList.jobs}
      rowKey={(job) => job.id}
      columns={[
        {
          title: "Compare",
          cell: (job) => (
            <input
              type="checkbox"
              aria-label={`Compare ${job.name} ${job.id}`}
              checked={selection.includes(job.id)}
              disabled={!selection.includes(job.id) && selection.length >= MOST_COMPARED}
              onChange={() => toggle(job)}
            />
          ),
        },
        {
          title: "Job",
          cell: (job) => (
            <>
              <Link href={`/jobs/${job.id}`}>{job.name}</Link>
              <br />
              <code className="quiet">{job.id}</code>
              {job.note && <div className="note">{job.note}</div>}
            </>
          ),
        },
        { title: "State", cell: (job) => <StateOf job={job} /> },
        {
          title: "Steps",
          cell: (job) => (
            <>
              {trainerOf(job)}
              {stepsOf(job)}
              <Progress value={job.step} max={job.total_steps} label={`Steps of ${job.name}`} />
            </>
          ),
        },
        { title: "Loss", numeric: true, cell: (job) => formatNumber(job.loss) },
        { title: "Training", cell: (job) => [job.stage, job.method, job.backend].filter(Boolean).join(" · ") },
        { title: "Base model", cell: (job) => job.base_model },
        { title: "Time", numeric: true, cell: (job) => <JobTime job={job} /> },
        { title: "Created", cell: (job) => formatTime(job.created) },
      ]}
    />
  );
}

/** The state of a job, and what it waits for. */
export const StateOf = ({ job }: { job: Job }) =>
  job.waiting ? (
    <>
      <StateBadge state={job.state} />
      <div className="quiet">
        <WaitNote wait={job.waiting} />
      </div>
    </>
  ) : (
    <StateBadge state={job.state} detail={job.detail} />
  );

/** How long a job has taken and, while it runs, what its trainings have left. */
function JobTime({ job }: { job: Job }) {
  return (
    <>
      {formatDuration(job.seconds)}
      {job.state === "running" && <TrainingLeft job={job.id} />}
    </>
  );
}

function TrainingLeft({ job }: { job: string }) {
  const remaining = (useJob(job).data?.left ?? []).map((part) => part.seconds);
  if (remaining.length === 0 || remaining.some((seconds) => seconds == null)) return null;
  return (
    <div className="quiet">{formatDuration(remaining.reduce<number>((sum, part) => sum + part!, 0))} left to train</div>
  );
}
