// The GPUs of this machine as they are now: memory of each device and each job, load, temperature, power, clocks.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { DeviceState, GpuUse, MachineLoad } from "../../api/schema";
import { formatBytes, formatDuration, formatNumber, formatTime } from "../../components/format";
import { MIB, useGpus } from "../../components/gpu_memory";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { HolderName } from "../../components/waiting";

const LOOK_MS = 2000;
const ENDED: readonly string[] = ["ended", "failed", "lost"];

export default function GpusPage() {
  const gpus = useGpus(LOOK_MS);
  return (
    <Page title="GPUs">
      {gpus.data?.machine && <Processors machine={gpus.data.machine} />}
      {gpus.data && <Devices devices={gpus.data.devices ?? []} />}
      <OpenSessions />
      <Queried query={gpus}>
        {({ state, gpus: gpuList, alerts, driver_version, cuda_version }) =>
          gpuList.length === 0 ? (
            <Empty title={state === "no GPU" ? "This machine has no GPU" : "The GPUs cannot be read"}>
              <p>
                {state === "no GPU"
                  ? "Trainings run on its CPU; small models and the tiny starter model are made for that."
                  : state}
              </p>
              <p>
                <Link href="/backends">Backends</Link> says which trainers run on a CPU.
              </p>
            </Empty>
          ) : (
            <>
              {alerts.map((alert) => (
                <p key={alert} className="banner" role="alert">
                  {alert}
                </p>
              ))}
              <div className="columns">
                {gpuList.map((gpu) => (
                  <Gpu key={gpu.index} gpu={gpu} />
                ))}
              </div>
              <p className="quiet">
                Driver {driver_version ?? "unknown"}, CUDA {cuda_version ?? "unknown"}; read at{" "}
                {formatTime(gpus.dataUpdatedAt / 1000)}
              </p>
            </>
          )
        }
      </Queried>
    </Page>
  );
}

/** Holder of each device, since when, and the waiting jobs. */
function Devices({ devices }: { devices: readonly DeviceState[] }) {
  const usedDevices = devices.filter((device) => device.holder || device.waiting.length > 0);
  if (usedDevices.length === 0) return null;
  return (
    <Section title="Who has the device">
      <Table
        cards
        caption="Holders of the devices"
        rows={usedDevices}
        rowKey={(row) => row.device}
        columns={[
          { title: "Device", cell: (row) => String(row.device) },
          { title: "Holder", cell: (row) => (row.holder ? <HolderName holder={row.holder} /> : "nobody here") },
          { title: "Since", cell: (row) => (row.holder?.since == null ? "" : formatTime(row.holder.since)) },
          {
            title: "Queue",
            cell: (row) =>
              row.waiting.length === 0 ? (
                "nobody waits"
              ) : (
                <ol className="queue">
                  {row.waiting.map((name, index) => (
                    <li key={index}>{name}</li>
                  ))}
                </ol>
              ),
          },
        ]}
      />
    </Section>
  );
}

/** Step sessions that are open: each has a model on a device until it ends. */
function OpenSessions() {
  const sessions = useQuery({
    queryKey: ["sessions"],
    queryFn: () => dataOf(client.GET("/api/v1/sessions")),
    refetchInterval: 5_000,
    retry: false,
  });
  const open = (sessions.data?.sessions ?? []).filter((session) => !ENDED.includes(session.state));
  if (open.length === 0) return null;
  return (
    <Section title="Open sessions">
      <Table
        cards
        caption="Open sessions"
        rows={open}
        rowKey={(row) => row.id}
        columns={[
          {
            title: "Session",
            cell: (row) => (
              <>
                {row.name} <code className="quiet">{row.id}</code>
              </>
            ),
          },
          { title: "State", cell: (row) => [row.state, row.detail].filter(Boolean).join(", ") },
          { title: "Model", cell: (row) => row.base_model },
          { title: "Open since", cell: (row) => formatTime(row.created) },
          { title: "Ends when idle for", cell: (row) => formatDuration(row.idle_s) },
        ]}
      />
    </Section>
  );
}

/** Processors and memory, and the jobs that use them: what a run on a CPU needs. */
function Processors({ machine }: { machine: MachineLoad }) {
  const { memory_used_mb: usedMemory, memory_total_mb: total, jobs = [] } = machine;
  return (
    <Section title="Processors and memory">
      <Facts
        facts={[
          ["Processors", formatNumber(machine.processors)],
          ["Load, 1 min", formatNumber(machine.load_1)],
          ["Load, 5 min", formatNumber(machine.load_5)],
          ["Memory", `${formatBytes(usedMemory * MIB)} of ${formatBytes(total * MIB)}`],
        ]}
      />
      <meter value={usedMemory} max={total} aria-label="Memory in use" />
      {jobs.length > 0 && (
        <Table
          caption="Memory of each running job"
          rows={jobs}
          rowKey={(job) => job.job}
          columns={[
            { title: "Job", cell: (job) => <Link href={`/jobs/${job.job}`}>{job.job}</Link> },
            { title: "Memory", numeric: true, cell: (job) => formatBytes(job.memory_mb * MIB) },
            { title: "Processes", numeric: true, cell: (job) => formatNumber(job.processes) },
          ]}
        />
      )}
    </Section>
  );
}

const unit = (value: number | null | undefined, word: string) =>
  value == null ? "not known" : `${formatNumber(value)} ${word}`;

function Gpu({ gpu }: { gpu: GpuUse }) {
  const usedMemory = formatBytes(gpu.memory_used_mb * MIB);
  const total = formatBytes(gpu.memory_total_mb * MIB);
  return (
    <Section title={`GPU ${gpu.index}: ${gpu.name}`}>
      <div className="meter">
        <span>
          Memory: {usedMemory} of {total}
        </span>
        <meter
          aria-label={`Memory of GPU ${gpu.index}`}
          min={0}
          max={gpu.memory_total_mb}
          high={0.95 * gpu.memory_total_mb}
          value={gpu.memory_used_mb}
        />
      </div>
      <Facts
        facts={[
          ["Load", unit(gpu.utilization_gpu, "%")],
          ["Memory load", unit(gpu.utilization_memory, "%")],
          ["Temperature", unit(gpu.temperature_c, "°C")],
          ["Power", unit(gpu.power_draw_w, "W")],
          ["Clock", unit(gpu.clock_graphics_mhz, "MHz")],
          ["Memory clock", unit(gpu.clock_memory_mhz, "MHz")],
        ]}
      />
      {gpu.processes.length === 0 ? (
        <p className="quiet">No process uses it.</p>
      ) : (
        <Table
          caption={`Memory of each job on GPU ${gpu.index}`}
          rows={gpu.processes}
          rowKey={(process) => process.job ?? "none"}
          columns={[
            {
              title: "Job",
              cell: (process) =>
                process.job ? <Link href={`/jobs/${process.job}`}>{process.job}</Link> : "outside of jobs",
            },
            {
              title: "Memory",
              numeric: true,
              cell: (process) => (process.memory_mb == null ? "not known" : formatBytes(process.memory_mb * MIB)),
            },
            { title: "Processes", cell: (process) => process.pids.join(", ") },
          ]}
        />
      )}
    </Section>
  );
}
