// The checkpoints of a job, and whether their bytes are those that were written.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { JobDetail } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useCancelable } from "../../components/cancelable";
import { formatBytes, formatNumber, formatTime } from "../../components/format";
import { Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import { isOver, REFRESH_MS } from "./queries";

export function Checkpoints({ job }: { job: JobDetail }) {
  const list = useQuery({
    queryKey: ["checkpoints", job.id],
    queryFn: () => dataOf(client.GET("/api/v1/jobs/{job}/checkpoints", { params: { path: { job: job.id } } })),
    refetchInterval: isOver(job.state) ? false : 2 * REFRESH_MS,
  });
  return (
    <Section title="Checkpoints">
      <Queried query={list}>
        {({ checkpoints }) =>
          checkpoints.length === 0 ? (
            <p className="quiet">
              {job.state === "completed"
                ? "A completed training keeps its result, and no checkpoints."
                : "None yet: hyperparameters.save_steps says how often one is written."}
            </p>
          ) : (
            <Table
              caption="Checkpoints"
              rows={checkpoints}
              rowKey={(checkpoint) => `${checkpoint.node}/${checkpoint.name}`}
              columns={[
                { title: "Trainer", cell: (checkpoint) => checkpoint.node },
                { title: "Step", numeric: true, cell: (checkpoint) => formatNumber(checkpoint.step) },
                { title: "Size", numeric: true, cell: (checkpoint) => formatBytes(checkpoint.bytes) },
                { title: "Metric", numeric: true, cell: (checkpoint) => formatNumber(checkpoint.metric) },
                { title: "Written", cell: (checkpoint) => formatTime(checkpoint.created) },
                {
                  title: "SHA-256 of its manifest",
                  cell: (checkpoint) => <code>{checkpoint.sha256 || "no manifest"}</code>,
                },
                {
                  title: "Verify",
                  cell: (checkpoint) => <Verify job={job.id} node={checkpoint.node} checkpoint={checkpoint.name} />,
                },
              ]}
            />
          )
        }
      </Queried>
    </Section>
  );
}

function Verify({ job, node, checkpoint }: { job: string; node: string; checkpoint: string }) {
  const verify = useCancelable((_: void, signal) =>
    dataOf(
      client.POST("/api/v1/jobs/{job}/verify", {
        params: { path: { job } },
        body: { node, checkpoint } as never,
        signal,
      }),
    ),
  );
  const damage = verify.data?.checkpoints[0]?.damage;
  return (
    <>
      <ActionButton mutation={verify} variables={undefined} onCancel={verify.cancel}>
        Verify
      </ActionButton>{" "}
      <span role="status">
        {verify.data &&
          (damage ? (
            <span className="state-failed">✕ {damage}</span>
          ) : (
            <span className="state-completed">● whole</span>
          ))}
      </span>
    </>
  );
}
