// What runs, what is live, what to do next.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { StateBadge } from "../../components/state";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Table } from "../../components/table";

export default function OverviewPage() {
  const jobs = useQuery({
    queryKey: ["jobs", "newest"],
    queryFn: () => dataOf(client.GET("/api/v1/jobs", { params: { query: { limit: 8 } } })),
    refetchInterval: 3000,
  });
  return (
    <Page title="Overview">
      <Section title="Newest jobs">
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
                ]}
              />
            )
          }
        </Queried>
      </Section>
    </Page>
  );
}
