// The GPUs of this machine as they are now: memory of each device and each job, load, temperature, power, clocks.

import { Link } from "wouter";
import type { GpuUse, MachineLoad } from "../../api/schema";
import { formatBytes, formatNumber, formatTime } from "../../components/format";
import { MIB, useGpus } from "../../components/gpu_memory";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";

const LOOK_MS = 2000;

export default function GpusPage() {
  const gpus = useGpus(LOOK_MS);
  return (
    <Page title="GPUs">
      {gpus.data?.machine && <Processors machine={gpus.data.machine} />}
      <Queried query={gpus}>
        {({ state, gpus: found, alerts, driver_version, cuda_version }) =>
          found.length === 0 ? (
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
                {found.map((gpu) => (
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

/** Processors and memory, and the jobs that use them: what a run on a CPU needs. */
function Processors({ machine }: { machine: MachineLoad }) {
  const { memory_used_mb: used, memory_total_mb: total, jobs = [] } = machine;
  return (
    <Section title="Processors and memory">
      <Facts
        facts={[
          ["Processors", formatNumber(machine.processors)],
          ["Load, 1 min", formatNumber(machine.load_1)],
          ["Load, 5 min", formatNumber(machine.load_5)],
          ["Memory", `${formatBytes(used * MIB)} of ${formatBytes(total * MIB)}`],
        ]}
      />
      <meter value={used} max={total} aria-label="Memory in use" />
      {jobs.length > 0 && (
        <Table
          caption="Memory of each running job"
          rows={jobs}
          rowKey={(one) => one.job}
          columns={[
            { title: "Job", cell: (one) => <Link href={`/jobs/${one.job}`}>{one.job}</Link> },
            { title: "Memory", numeric: true, cell: (one) => formatBytes(one.memory_mb * MIB) },
            { title: "Processes", numeric: true, cell: (one) => formatNumber(one.processes) },
          ]}
        />
      )}
    </Section>
  );
}

const unit = (value: number | null | undefined, word: string) =>
  value == null ? "not known" : `${formatNumber(value)} ${word}`;

function Gpu({ gpu }: { gpu: GpuUse }) {
  const used = formatBytes(gpu.memory_used_mb * MIB);
  const total = formatBytes(gpu.memory_total_mb * MIB);
  return (
    <Section title={`GPU ${gpu.index}: ${gpu.name}`}>
      <div className="meter">
        <span>
          Memory: {used} of {total}
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
          rowKey={(one) => one.job ?? "none"}
          columns={[
            {
              title: "Job",
              cell: (one) => (one.job ? <Link href={`/jobs/${one.job}`}>{one.job}</Link> : "outside of jobs"),
            },
            {
              title: "Memory",
              numeric: true,
              cell: (one) => (one.memory_mb == null ? "not known" : formatBytes(one.memory_mb * MIB)),
            },
            { title: "Processes", cell: (one) => one.pids.join(", ") },
          ]}
        />
      )}
    </Section>
  );
}
