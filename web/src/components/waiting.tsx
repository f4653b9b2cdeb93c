// What a job waits for: who has the device, since when, and the place in the queue.

import { Link } from "wouter";
import type { DeviceHolder, DeviceWait } from "../api/schema";
import { formatTime } from "./format";

const REASONS: Record<string, string> = {
  device: "the device",
  turn: "an equal training",
  limit: "the device's limit of the server",
};

/** Holder of a device; a job is a link. */
export function HolderName({ holder }: { holder: DeviceHolder }) {
  if (holder.kind !== "job" || !holder.run)
    return (
      <>
        {holder.kind} {holder.name}
      </>
    );
  return (
    <>
      job <Link href={`/jobs/${holder.run}`}>{holder.name}</Link>
    </>
  );
}

export function WaitNote({ wait }: { wait: DeviceWait }) {
  const { holder } = wait;
  return (
    <span className="wait">
      waits for {REASONS[wait.reason] ?? wait.reason} since {formatTime(wait.since)}, number {wait.position} in the
      queue
      {holder && (
        <>
          ; <HolderName holder={holder} /> has it
          {holder.since != null && ` since ${formatTime(holder.since)}`}
        </>
      )}
    </span>
  );
}
