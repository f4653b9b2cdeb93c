// Whether the service answers. While it does not, every page says so, since when, and what it shows is marked as old.

import { useIsFetching, useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { fetchOrThrow } from "../api/client";
import { formatTime } from "./format";

const LOOK_MS = 3000;

export function ConnectionNote() {
  const health = useQuery({
    queryKey: ["health"],
    queryFn: async () => (await fetchOrThrow(new Request("/health"))).json(),
    refetchInterval: LOOK_MS,
    retry: false,
  });
  useIsFetching();
  useEffect(() => {
    document.documentElement.toggleAttribute("data-disconnected", health.isError);
  }, [health.isError]);
  if (!health.isError) return null;
  return (
    <p className="banner" role="alert">
      The service does not answer. What you see is from {formatTime(health.dataUpdatedAt / 1000)}; the page tries again
      every {LOOK_MS / 1000} s. Start it with <code>trainyard up</code>.
    </p>
  );
}
