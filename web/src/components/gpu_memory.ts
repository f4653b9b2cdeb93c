// The GPUs of this machine as they are now, and what of them a job uses.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../api/client";
import type { GpuList } from "../api/schema";
import { formatBytes } from "./format";

export const MIB = 1024 * 1024;

/** Read again every so often while there is one. */
export const useGpus = (everyMs: number, enabled = true) =>
  useQuery({
    queryKey: ["gpus"],
    queryFn: () => dataOf(client.GET("/api/v1/gpus")),
    refetchInterval: ({ state }) => (state.data?.gpus.length === 0 ? false : everyMs),
    enabled,
  });

/** `12.1 GiB of 80 GiB on GPU 0` for each GPU that a job uses; empty for one that uses none. */
export const memoryOf = (job: string, found: GpuList | undefined): string =>
  (found?.gpus ?? [])
    .flatMap((gpu) =>
      gpu.processes
        .filter((one) => one.job === job)
        .map((one) => {
          const used = one.memory_mb == null ? "an unknown part" : formatBytes(one.memory_mb * MIB);
          return `${used} of ${formatBytes(gpu.memory_total_mb * MIB)} on GPU ${gpu.index}`;
        }),
    )
    .join(", ");
