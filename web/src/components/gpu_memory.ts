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
export const memoryOf = (job: string, found: GpuList | undefined): string =>
  (found?.gpus ?? [])
    .flatMap((gpu) =>
      gpu.processes
        .filter((process) => process.job === job)
        .map((process) => {
          const used = process.memory_mb == null ? "an unknown part" : formatBytes(process.memory_mb * MIB);
          return `${used} of ${formatBytes(gpu.memory_total_mb * MIB)} on GPU ${gpu.index}`;
        }),
    )
    .join(", ");

/** `1.2 GiB of 16 GiB, 3 processes` of the machine's own memory; empty for a job that does not run here. */
export function residentOf(job: string, found: GpuList | undefined): string {
  const machine = found?.machine;
  const own = machine?.jobs?.find((one) => one.job === job);
  if (!machine || !own) return "";
  return `${formatBytes(own.memory_mb * MIB)} of ${formatBytes(machine.memory_total_mb * MIB)}`;
}

/** `load 2.1 of 2 processors`. */
export const loadOf = (found: GpuList | undefined): string =>
  found?.machine ? `${formatNumber(found.machine.load_1)} on ${formatNumber(found.machine.processors)} processors` : "";
