// The ports of nodes as the service describes them: what a port is named on a node, and whose colour it has.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../api/client";
import type { Palette } from "../api/schema";

export const usePalette = () =>
  useQuery({
    queryKey: ["palette"],
    queryFn: (): Promise<Palette> => dataOf(client.GET("/api/v1/chains/palette")),
    staleTime: Infinity,
  });

/** Port -> its group, which has a colour. */
export type PortGroups = ReadonlyMap<string, string>;

export const portGroups = (palette: Palette): PortGroups =>
  new Map(palette.ports.map(({ port, group }) => [port as string, group as string]));

export const groupOf = (groups: PortGroups, port: string): string => groups.get(port) ?? port;

/**
 * The handle on the taking side. Ports of a group that is no port itself share one, such as every kind of rows
 * (`dataset`); a reward model has the colour of an adapter and a handle of its own.
 */
export function handleOf(groups: PortGroups, port: string): string {
  const group = groupOf(groups, port);
  return groups.has(group) ? port : group;
}
