// Two to five jobs over each other: curves on one axis, and only those settings that differ.

import { useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link, useSearchParams } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { JobDetail } from "../../api/schema";
import { Curve, type CurveSeries } from "../../components/curve";
import { formatDuration, formatNumber } from "../../components/format";
import { Interval } from "../../components/interval";
import { Empty, Loading, ProblemNote } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { StateBadge } from "../../components/state";
import { Table } from "../../components/table";
import { useCurveStyle } from "./charts";
import { curveOf, metricsOf, seriesOf, titleOf, type NodeCurve } from "./curves";
import { isOver, REFRESH_MS, stepsOf, trainerOf, useJobDetails } from "./queries";
import "./jobs.css";

const MOST = 5;
const POINTS = 1000;

export default function ComparePage() {
  const [search] = useSearchParams();
  const { tenant } = useLogin();
  const ids = [...new Set(search.getAll("job"))].slice(0, MOST);
  const details = useQueries({ queries: useJobDetails(ids) });
  const curves = useQueries({
    queries: ids.map((job, index) => ({
      queryKey: ["curves", job],
      queryFn: async () => {
        const query = { max_points: POINTS };
        const result = await dataOf(client.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query } }));
        return result.trainings.map(curveOf);
      },
      enabled: Boolean(details[index]?.data?.trainings.length), // a job that has not trained has no curve, and 404 for it
      refetchInterval: isOver(details[index]?.data?.state) ? (false as const) : REFRESH_MS,
    })),
  });
  const failure = details.find((detail) => detail.error && !detail.data);
  const jobs = details.flatMap((detail) => (detail.data ? [detail.data] : []));
  return (
    <Page title="Compare jobs">
      {ids.length < 2 ? (
        <Empty title="Choose two to five jobs">
          <p>
            Mark them in the list of <Link href="/jobs">jobs</Link>.
          </p>
        </Empty>
      ) : failure ? (
        <ProblemNote error={failure.error} />
      ) : jobs.length < ids.length ? (
        <Loading />
      ) : (
        <>
          <Results jobs={jobs} />
          <Overlay jobs={jobs} curves={curves.map((curve) => curve.data ?? [])} />
          {tenant === "" && jobs.slice(1).map((job) => <Pair key={job.id} first={jobs[0]!} second={job} jobs={jobs} />)}
          <Differences jobs={jobs} />
        </>
      )}
    </Page>
  );
}

const nameOf = (job: JobDetail, allJobs: readonly JobDetail[]) =>
  allJobs.filter((candidate) => candidate.name === job.name).length > 1 ? `${job.name} ${job.id.slice(-4)}` : job.name;

function Results({ jobs }: { jobs: readonly JobDetail[] }) {
  return (
    <Section title="Jobs">
      <Table
        caption="Compared jobs"
        rows={jobs}
        rowKey={(job) => job.id}
        columns={[
          { title: "Job", cell: (job) => <Link href={`/jobs/${job.id}`}>{nameOf(job, jobs)}</Link> },
          { title: "State", cell: (job) => <StateBadge state={job.state} detail={job.detail} /> },
          { title: "Steps", cell: (job) => trainerOf(job) + stepsOf(job) },
          { title: "Loss", numeric: true, cell: (job) => formatNumber(job.loss) },
          { title: "Time", numeric: true, cell: (job) => formatDuration(job.seconds) },
        ]}
      />
    </Section>
  );
}

function Overlay({ jobs, curves }: { jobs: readonly JobDetail[]; curves: readonly NodeCurve[][] }) {
  const [style, controls] = useCurveStyle();
  const charts = useMemo(
    () =>
      metricsOf(curves.flat()).map((metric) => ({
        metric,
        series: jobs.flatMap((job, index) =>
          curves[index]!.flatMap((curve): CurveSeries[] => {
            const title = nameOf(job, jobs);
            const result = seriesOf(curve, metric, curves[index]!.length > 1 ? `${title} ${curve.node}` : title);
            return result ? [{ name: result.name, x: result.x, y: result.y }] : [];
          }),
        ),
      })),
    [jobs, curves],
  );
  return (
    <Section title="Curves" actions={controls}>
      <div className="curves">
        {charts
          .filter(({ series }) => series.length > 0)
          .map(({ metric, series }) => (
            <Curve
              key={metric}
              series={series}
              xLabel="Step"
              yLabel={titleOf(metric)}
              log={style.log}
              smoothing={style.smoothing}
            />
          ))}
      </div>
    </Section>
  );
}

/** Of two jobs that have ended: what they trained on, the benchmarks on the same rows, and their answers. */
function Pair({ first, second, jobs }: { first: JobDetail; second: JobDetail; jobs: readonly JobDetail[] }) {
  const pair = [first, second];
  const areOver = pair.every((job) => isOver(job.state));
  const query = useQuery({
    queryKey: ["compare", "pair", first.run_id, second.run_id],
    queryFn: () =>
      dataOf(client.GET("/api/v1/jobs/compare", { params: { query: { job: [first.run_id, second.run_id] } } })),
    enabled: areOver,
    retry: false,
  });
  const [name, secondName] = pair.map((job) => nameOf(job, jobs)) as [string, string];
  if (!areOver) return null;
  return (
    <Section title={`${name} and ${secondName}`}>
      <Queried query={query}>
        {(data) => (
          <>
            <Table
              caption={`What ${name} and ${secondName} trained on`}
              rows={data.metrics}
              rowKey={(row) => row.name}
              columns={[
                { title: "Result", cell: (row) => row.name.replaceAll("_", " ") },
                { title: name, numeric: true, cell: (row) => shownOf(row.first) },
                { title: secondName, numeric: true, cell: (row) => shownOf(row.second) },
              ]}
            />
            {data.benchmarks.length === 0 ? (
              <p className="quiet">They have no benchmark in common: both need an evaluator on the same rows.</p>
            ) : (
              <Table
                caption={`Benchmarks of ${name} and ${secondName}`}
                rows={data.benchmarks}
                rowKey={(row) => row.name}
                columns={[
                  {
                    title: "Benchmark",
                    cell: (row) => (
                      <>
                        {row.name}
                        <div className="quiet">{row.metric}</div>
                      </>
                    ),
                  },
                  { title: name, numeric: true, cell: (row) => formatNumber(row.first) },
                  { title: secondName, numeric: true, cell: (row) => formatNumber(row.second) },
                  {
                    title: `Improvement by ${secondName}`,
                    cell: (row) =>
                      row.improvement == null ? (
                        <span className="quiet">not on the same rows</span>
                      ) : (
                        <Interval value={{ mean: row.improvement, low: row.low, high: row.high, cases: row.rows }} />
                      ),
                  },
                  { title: "Rows", numeric: true, cell: (row) => formatNumber(row.rows) },
                  { title: "Better, worse", cell: (row) => (row.rows > 0 ? `${row.better}, ${row.worse}` : "") },
                ]}
              />
            )}
            {data.samples.length > 0 && (
              <Table
                caption={`Answers of ${name} and ${secondName}`}
                rows={data.samples}
                rowKey={(_, index) => index}
                columns={[
                  { title: "Prompt", cell: (row) => <span className="cell-text">{row.prompt}</span> },
                  { title: "Expected", cell: (row) => <span className="cell-text">{row.gold}</span> },
                  { title: name, cell: (row) => <span className="cell-text">{row.first}</span> },
                  { title: secondName, cell: (row) => <span className="cell-text">{row.second}</span> },
                ]}
              />
            )}
          </>
        )}
      </Queried>
    </Section>
  );
}

const shownOf = (value: unknown) => (typeof value === "number" ? formatNumber(value) : textOf(value) || "not known");

/** Differences of the resolved chains, where each missing setting has its default. */
function Differences({ jobs }: { jobs: readonly JobDetail[] }) {
  const ids = jobs.map((job) => job.id);
  const query = useQuery({
    queryKey: ["compare", ...ids],
    queryFn: () => dataOf(client.GET("/api/v1/jobs/compare", { params: { query: { job: ids } } })),
  });
  return (
    <Section title="Settings that differ">
      <Queried query={query}>
        {({ settings }) =>
          settings.length === 0 ? (
            <p>Their settings are the same, with every default filled in.</p>
          ) : (
            <>
              <SettingTable caption="Settings that differ" rows={settings.filter(isSetInAll)} jobs={jobs} />
              {settings.some((row) => !isSetInAll(row)) && (
                <details>
                  <summary>Settings that not all of them have</summary>
                  <SettingTable
                    caption="Settings that not all of them have"
                    rows={settings.filter((row) => !isSetInAll(row))}
                    jobs={jobs}
                  />
                </details>
              )}
            </>
          )
        }
      </Queried>
    </Section>
  );
}

interface Setting {
  name: string;
  values: readonly unknown[];
}

const isSetInAll = (row: Setting) => row.values.every((value) => value != null);

function SettingTable({ caption, rows, jobs }: { caption: string; rows: Setting[]; jobs: readonly JobDetail[] }) {
  if (rows.length === 0) return null;
  return (
    <Table
      caption={caption}
      rows={rows}
      rowKey={(row) => row.name}
      columns={[
        { title: "Setting", cell: (row) => <code>{row.name}</code> },
        ...jobs.map((job, index) => ({
          title: nameOf(job, jobs),
          cell: (row: Setting) => textOf(row.values[index]) || <span className="quiet">not set</span>,
        })),
      ]}
    />
  );
}

const textOf = (value: unknown) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));
