// The GPUs, processors and memory of this machine as they are now, and what of them a job uses.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../api/client";
import type { GpuList } from "../api/schema";
import { formatBytes, formatNumber } from "./format";

export const MIB = 1024 * 1024;

/** Read again every so often while there is one. */
export const useGpus = (everyMs: number, enabled = true) =>
  useQuery({
    queryKey: ["gpus"],
    queryFn: () => dataOf(client.GET("/api/v1/gpus")),
    refetchInterval: everyMs,
    enabled,
  });

/** `12.1 GiB of 80 GiB on GPU 0` for each GPU that a job uses; empty for one that uses none. */
export const memoryOf = (job: string, machineState: GpuList | undefined): string =>
  (machineState?.gpus ?? [])
    .flatMap((gpu) =>
      gpu.processes
        .filter((process) => process.job === job)
        .map((process) => {
          const usedMemory = process.memory_mb == null ? "an unknown part" : formatBytes(process.memory_mb * MIB);
          return `${usedMemory} of ${formatBytes(gpu.memory_total_mb * MIB)} on GPU ${gpu.index}`;
        }),
    )
    .join(", ");

/** `1.2 GiB of 16 GiB, 3 processes` of the machine's own memory; empty for a job that does not run here. */
export function residentOf(job: string, machineState: GpuList | undefined): string {
  const machine = machineState?.machine;
  const usage = machine?.jobs?.find((entry) => entry.job === job);
  if (!machine || !usage) return "";
  return `${formatBytes(usage.memory_mb * MIB)} of ${formatBytes(machine.memory_total_mb * MIB)}`;
}

/** `load 2.1 of 2 processors`. */
export const loadOf = (machineState: GpuList | undefined): string =>
  machineState?.machine
    ? `${formatNumber(machineState.machine.load_1)} on ${formatNumber(machineState.machine.processors)} processors`
    : "";
