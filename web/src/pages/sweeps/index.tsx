// Every sweep: how far it is, and its best trial.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import { formatNumber } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried } from "../../components/page";
import { StateBadge } from "../../components/state";
import { Table } from "../../components/table";

export default function SweepsPage() {
  const login = useLogin();
  const sweeps = useQuery({
    queryKey: ["sweeps"],
    queryFn: () => dataOf(client.GET("/api/v1/sweeps")),
    refetchInterval: 5000,
  });
  return (
    <Page
      title="Sweeps"
      actions={
        login.allows("run") &&
        login.tenant === "" && (
          <Link className="button" href="/sweeps/new">
            New sweep
          </Link>
        )
      }
    >
      <Queried query={sweeps}>
        {({ sweeps: sweepList }) =>
          sweepList.length === 0 ? (
            <Empty title="No sweep yet">
              <p>A sweep trains one chain with many sets of values, and continues the best.</p>
              <p>
                Press <Link href="/sweeps/new">New sweep</Link>, or start one in a terminal:{" "}
                <code>trainyard sweep chain.yaml -p 'trainer.learning_rate=loguniform(1e-5,1e-3)'</code>
              </p>
            </Empty>
          ) : (
            <Table
              caption="Sweeps"
              rows={sweepList}
              rowKey={(sweep) => sweep.name}
              columns={[
                {
                  title: "Sweep",
                  cell: (sweep) => <Link href={`/sweeps/${encodeURIComponent(sweep.name)}`}>{sweep.name}</Link>,
                },
                { title: "State", cell: (sweep) => <StateBadge state={sweep.is_running ? "running" : "ended"} /> },
                {
                  title: "Trials",
                  numeric: true,
                  cell: (sweep) => `${formatNumber(sweep.trials.length)} of ${formatNumber(sweep.num_trials)}`,
                },
                { title: "Steps", numeric: true, cell: (sweep) => formatNumber(sweep.num_steps) },
                { title: "Metric", cell: (sweep) => sweep.metric },
                {
                  title: "Best",
                  numeric: true,
                  cell: (sweep) => (sweep.best ? formatNumber(sweep.best.value) : "none yet"),
                },
              ]}
            />
          )
        }
      </Queried>
    </Page>
  );
}
