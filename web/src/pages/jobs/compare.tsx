// Two to five jobs over each other: curves on one axis, and only those settings that differ.

import { useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { Link, useSearchParams } from "wouter";
import { client, dataOf } from "../../api/client";
import type { JobDetail } from "../../api/schema";
import { Curve, type CurveSeries } from "../../components/curve";
import { formatDuration, formatNumber } from "../../components/format";
import { Empty, Loading, ProblemNote } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { StateBadge } from "../../components/state";
import { Table } from "../../components/table";
import { useCurveStyle } from "./charts";
import { curveOf, METRICS, seriesOf, type Metric, type NodeCurve } from "./curves";
import { isOver, REFRESH_MS, stepsOf, trainerOf, useJobDetails } from "./queries";
import "./jobs.css";

const MOST = 5;
const POINTS = 1000;

export default function ComparePage() {
  const [search] = useSearchParams();
  const ids = [...new Set(search.getAll("job"))].slice(0, MOST);
  const details = useQueries({ queries: useJobDetails(ids) });
  const curves = useQueries({
    queries: ids.map((job, index) => ({
      queryKey: ["curves", job],
      queryFn: async () => {
        const query = { max_points: POINTS };
        const found = await dataOf(client.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query } }));
        return found.trainings.map(curveOf);
      },
      enabled: Boolean(details[index]?.data?.trainings.length), // a job that has not trained has no curve, and 404 for it
      refetchInterval: isOver(details[index]?.data?.state) ? (false as const) : REFRESH_MS,
    })),
  });
  const failed = details.find((one) => one.error && !one.data);
  const jobs = details.flatMap((one) => (one.data ? [one.data] : []));
  return (
    <Page title="Compare jobs">
      {ids.length < 2 ? (
        <Empty title="Choose two to five jobs">
          <p>
            Mark them in the list of <Link href="/jobs">jobs</Link>.
          </p>
        </Empty>
      ) : failed ? (
        <ProblemNote error={failed.error} />
      ) : jobs.length < ids.length ? (
        <Loading />
      ) : (
        <>
          <Results jobs={jobs} />
          <Overlay jobs={jobs} curves={curves.map((one) => one.data ?? [])} />
          <Differences jobs={jobs} />
        </>
      )}
    </Page>
  );
}

const titleOf = (job: JobDetail, all: readonly JobDetail[]) =>
  all.filter((one) => one.name === job.name).length > 1 ? `${job.name} ${job.id.slice(-4)}` : job.name;

function Results({ jobs }: { jobs: readonly JobDetail[] }) {
  return (
    <Section title="Jobs">
      <Table
        caption="Compared jobs"
        rows={jobs}
        rowKey={(job) => job.id}
        columns={[
          { title: "Job", cell: (job) => <Link href={`/jobs/${job.id}`}>{titleOf(job, jobs)}</Link> },
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
      (Object.keys(METRICS) as Metric[]).map((metric) => ({
        metric,
        series: jobs.flatMap((job, index) =>
          curves[index]!.flatMap((one): CurveSeries[] => {
            const own = titleOf(job, jobs);
            const found = seriesOf(one, metric, curves[index]!.length > 1 ? `${own} ${one.node}` : own);
            return found ? [{ name: found.name, x: found.x, y: found.y }] : [];
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
            <Curve key={metric} series={series} xLabel="Step" yLabel={METRICS[metric]} {...style} />
          ))}
      </div>
    </Section>
  );
}

/** What differs on the resolved chains, where each setting that nobody wrote has its default. */
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
            <Table
              caption="Settings that differ"
              rows={settings}
              rowKey={(row) => row.name}
              columns={[
                { title: "Setting", cell: (row) => <code>{row.name}</code> },
                ...jobs.map((job, index) => ({
                  title: titleOf(job, jobs),
                  cell: (row: (typeof settings)[number]) =>
                    textOf(row.values[index]) || <span className="quiet">not set</span>,
                })),
              ]}
            />
          )
        }
      </Queried>
    </Section>
  );
}

const textOf = (value: unknown) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));
