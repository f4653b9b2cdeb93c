// A chain as a graph: typed coloured ports, links, and the state of each node. Read only here; the editor builds on it.

import "@xyflow/react/dist/base.css";
import "../styles/graph.css";
import dagre from "@dagrejs/dagre";
import {
  Background,
  Controls,
  Handle,
  Position,
  ReactFlow,
  ReactFlowProvider,
  useReactFlow,
  useUpdateNodeInternals,
  type Edge,
  type Node,
  type NodeProps,
} from "@xyflow/react";
import { memo, useEffect, useMemo } from "react";
import type { Palette } from "../api/schema";
import { formatNumber } from "./format";
import { Queried } from "./page";
import { groupOf, handleOf, portGroups, usePalette, type PortGroups } from "./ports";
import { StateBadge } from "./state";

/** What a graph needs of a node; the answers of `chains expand` and `jobs nodes` have it. */
export interface GraphNode {
  id: string;
  type: string;
  needs: readonly string[];
  takes?: readonly string[];
  makes: readonly string[];
  /** What each taken port gets, and from which port of which node: a reward model comes from the port `adapter`. */
  inputs: Record<string, readonly { node_id: string; port: string }[]>;
  /** What it does, in one line of the service: `sft · lora r32 · 3 epochs`. */
  summary?: string;
  /** What it has left in a run: port -> its rows. */
  outputs?: Readonly<Record<string, { rows?: number | null }>>;
  state?: string;
  fraction?: number | null;
  /** Reasons against the node, and how many required settings it lacks. */
  problems?: number;
  valid?: boolean;
}

/** One handle on a side of a node. */
export interface PortHandle {
  id: string;
  group: string;
  rows?: number | null;
}

export interface NodeData extends Record<string, unknown> {
  type: string;
  summary: string;
  takes: PortHandle[];
  makes: PortHandle[];
  state: string;
  percent: number | null;
  problems: number;
  valid: boolean;
}

export type FlowNode = Node<NodeData, "chain">;
export type Place = { x: number; y: number };

export const NODE_WIDTH = 184;
const ROW_HEIGHT = 22;
const HEAD_HEIGHT = 78;
export const ORDER_IN = "order-in";
export const ORDER_OUT = "order-out";

export const heightOf = (node: { takes: number; makes: number }) =>
  HEAD_HEIGHT + Math.max(1, node.takes, node.makes) * ROW_HEIGHT;

function NodeView({ id, data, selected }: NodeProps<FlowNode>) {
  const rows = Math.max(1, data.takes.length, data.makes.length);
  const measure = useUpdateNodeInternals();
  const ports = `${data.takes.map((port) => port.id).join()}>${data.makes.map((port) => port.id).join()}`;
  useEffect(() => measure(id), [measure, id, ports]); // xyflow knows no port that came after the first measure
  return (
    <div
      className={`chain-node${selected ? " is-selected" : ""}${data.problems ? " has-problem" : ""}${data.state ? ` node-${data.state}` : ""}`}
    >
      <div className="chain-node-head">
        <strong title={id}>{id}</strong>
        <span className="chain-node-summary quiet" title={[data.type, data.summary].filter(Boolean).join(": ")}>
          {[isNamedByType(id, data.type) && data.summary ? "" : data.type, unbroken(data.summary)]
            .filter(Boolean)
            .join(" · ")}
        </span>
        <span className="chain-node-state">
          {data.state ? (
            <StateBadge state={data.state} detail={data.percent == null ? "" : `${data.percent} %`} />
          ) : null}
          {data.problems > 0 && (
            <span className="badge-bad">
              {data.problems} {data.valid ? (data.problems === 1 ? "problem" : "problems") : "required or wrong"}
            </span>
          )}
        </span>
      </div>
      <div className="chain-node-ports" style={{ height: rows * ROW_HEIGHT }}>
        {data.takes.map(({ id: port, group }, row) => (
          <Handle
            key={port}
            id={port}
            type="target"
            position={Position.Left}
            className={`port port-${group}`}
            style={{ top: HEAD_HEIGHT + (row + 0.5) * ROW_HEIGHT }}
            isConnectableStart={false}
          />
        ))}
        <ul className="ports-in">
          {data.takes.map(({ id: port }) => (
            <li key={port}>{port}</li>
          ))}
        </ul>
        <ul className="ports-out">
          {data.makes.map(({ id: port, rows }) => (
            <li key={port}>
              {rows != null && `${formatNumber(rows)} `}
              {port}
            </li>
          ))}
        </ul>
        {data.makes.map(({ id: port, group }, row) => (
          <Handle
            key={port}
            id={port}
            type="source"
            position={Position.Right}
            className={`port port-${group}`}
            style={{ top: HEAD_HEIGHT + (row + 0.5) * ROW_HEIGHT }}
          />
        ))}
        <Handle id={ORDER_IN} type="target" position={Position.Left} className="port-order" isConnectable={false} />
        <Handle id={ORDER_OUT} type="source" position={Position.Right} className="port-order" isConnectable={false} />
      </div>
    </div>
  );
}

/** `lr 2e-4` stays on one line. */
const unbroken = (summary: string) =>
  summary
    .split(" · ")
    .map((part) => (part.length < 20 ? part.replaceAll(" ", "\u00a0") : part))
    .join(" · ");

/** `trainer-2` says that it is a trainer, `control` does not. */
const isNamedByType = (id: string, type: string) => id.startsWith(type.replaceAll("_", "-"));

/** xyflow compares by identity: a node whose data is the same object is not rendered again while another one moves. */
export const NODE_TYPES = { chain: memo(NodeView) };

export function dataOf(node: GraphNode, groups: PortGroups): NodeData {
  const inputs = [...(node.takes ?? []), ...Object.keys(node.inputs)];
  const handles = new Map(inputs.map((port) => [handleOf(groups, port), groupOf(groups, port)]));
  return {
    type: node.type,
    summary: node.summary ?? "",
    takes: [...handles].map(([id, group]) => ({ id, group })),
    makes: node.makes.map((port) => ({ id: port, group: groupOf(groups, port), rows: node.outputs?.[port]?.rows })),
    state: node.state ?? "",
    percent: node.state === "running" && node.fraction != null ? Math.round(node.fraction * 100) : null,
    problems: node.problems ?? 0,
    valid: node.valid ?? true,
  };
}

/** A node as a screen reader says it. */
export const labelOf = (node: GraphNode): string =>
  [node.id, node.type, node.summary, node.state, node.problems && `${node.problems} problems`]
    .filter(Boolean)
    .join(", ");

/** Each port that a node takes with the port that gives it, once. */
function linksInto(node: GraphNode): { from: string; makes: string; takes: string }[] {
  const links = Object.entries(node.inputs).flatMap(([takes, sources]) =>
    sources.map((source) => ({ from: source.node_id, makes: source.port, takes })),
  );
  return [...new Map(links.map((link) => [`${link.from}:${link.makes}:${link.takes}`, link])).values()];
}

/** One line for each port that a node takes from one before it; a grey one where a link only orders the two. */
export function edgesOf(nodes: readonly GraphNode[], groups: PortGroups, editable: boolean): Edge[] {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const edges: Edge[] = [];
  for (const node of nodes) {
    const direct = new Set<string>();
    for (const link of linksInto(node)) {
      if (!byId.get(link.from)?.makes.includes(link.makes)) continue;
      const isLinked = node.needs.includes(link.from);
      if (isLinked) direct.add(link.from);
      const isSame = link.makes === link.takes;
      edges.push({
        id: `${link.from}:${link.makes}->${node.id}${isSame ? "" : `:${link.takes}`}`,
        source: link.from,
        target: node.id,
        sourceHandle: link.makes,
        targetHandle: handleOf(groups, link.takes),
        className: `link link-${groupOf(groups, link.takes)}${isLinked ? "" : " link-through"}`,
        deletable: isLinked && editable,
        selectable: isLinked && editable,
        focusable: isLinked && editable,
        ariaLabel: `${link.from} gives ${link.makes} to ${node.id}${isSame ? "" : ` as ${link.takes}`}`,
      });
    }
    for (const need of node.needs) {
      if (!byId.has(need) || direct.has(need)) continue;
      edges.push({
        id: `${need}->${node.id}`,
        source: need,
        target: node.id,
        sourceHandle: ORDER_OUT,
        targetHandle: ORDER_IN,
        className: "link link-order",
        deletable: editable,
        selectable: editable,
        focusable: editable,
        ariaLabel: `${node.id} runs after ${need}`,
      });
    }
  }
  return edges;
}

/** Places from left to right in the order of the links (dagre). */
export function layOut(
  nodes: readonly { id: string; needs: readonly string[]; takes: number; makes: number }[],
): Record<string, Place> {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 32, ranksep: 32 });
  graph.setDefaultEdgeLabel(() => ({}));
  const byId = new Set(nodes.map((node) => node.id));
  for (const node of nodes) graph.setNode(node.id, { width: NODE_WIDTH, height: heightOf(node) });
  for (const node of nodes) {
    for (const need of node.needs) if (byId.has(need)) graph.setEdge(need, node.id);
  }
  dagre.layout(graph);
  return Object.fromEntries(
    nodes.map((node) => {
      const { x, y } = graph.node(node.id);
      return [node.id, { x: x - NODE_WIDTH / 2, y: y - heightOf(node) / 2 }];
    }),
  );
}

interface ChainGraphProps {
  nodes: readonly GraphNode[];
  selected?: string;
  onSelect?: (id: string) => void;
  label: string;
}

/** A chain with the states of its nodes, such as those of a run. */
export function ChainGraph(props: ChainGraphProps) {
  const palette = usePalette();
  return (
    <Queried query={palette}>
      {(data) => (
        <ReactFlowProvider>
          <Graph {...props} palette={data} />
        </ReactFlowProvider>
      )}
    </Queried>
  );
}

function Graph({ nodes, selected, onSelect, label, palette }: ChainGraphProps & { palette: Palette }) {
  const groups = useMemo(() => portGroups(palette), [palette]);
  const flow = useReactFlow();
  const shape = nodes.map((node) => `${node.id}<${node.needs.join()}`).join(";");
  const positions = useMemo(() => {
    const sizedNodes = nodes.map((node) => {
      const data = dataOf(node, groups);
      return { id: node.id, needs: node.needs, takes: data.takes.length, makes: data.makes.length };
    });
    return layOut(sizedNodes);
    // eslint-disable-next-line
  }, [shape]);
  useEffect(() => {
    const handle = window.setTimeout(() => void flow.fitView({ padding: 0.05, maxZoom: 1 }), 50);
    return () => window.clearTimeout(handle);
  }, [flow, shape]);
  const flowNodes: FlowNode[] = nodes.map((node) => ({
    id: node.id,
    type: "chain",
    position: positions[node.id] ?? { x: 0, y: 0 },
    data: dataOf(node, groups),
    selected: node.id === selected,
    ariaLabel: labelOf(node),
  }));
  return (
    <div className="graph-frame" role="region" aria-label={label}>
      <ReactFlow
        nodes={flowNodes}
        edges={edgesOf(nodes, groups, false)}
        nodeTypes={NODE_TYPES}
        nodesDraggable={false}
        nodesConnectable={false}
        elementsSelectable={Boolean(onSelect)}
        onNodeClick={(_, node) => onSelect?.(node.id)}
        onSelectionChange={({ nodes: [first] }) => first && first.id !== selected && onSelect?.(first.id)}
        proOptions={{ hideAttribution: true }}
        minZoom={0.1}
        fitView
      >
        <Background />
        <Controls showInteractive={false} />
      </ReactFlow>
    </div>
  );
}
