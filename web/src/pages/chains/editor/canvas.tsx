// The canvas: nodes with typed ports, links that the service allows, and the state of the run on the same nodes.

import {
  applyEdgeChanges,
  applyNodeChanges,
  Background,
  Controls,
  MiniMap,
  Panel,
  ReactFlow,
  useReactFlow,
  type Connection,
  type Edge,
  type EdgeChange,
  type FinalConnectionState,
  type NodeChange,
  type OnConnectStartParams,
} from "@xyflow/react";
import { useCallback, useEffect, useRef, useState, type Dispatch, type DragEvent, type SetStateAction } from "react";
import { Link } from "wouter";
import type { LinkAnswer } from "../../../api/schema";
import {
  dataOf,
  edgesOf,
  labelOf,
  NODE_TYPES,
  type FlowNode,
  type GraphNode,
  type NodeData,
} from "../../../components/graph";
import type { PortGroups } from "../../../components/ports";
import { Prose } from "../../../components/prose";
import { linked, unlinked, without, type DraftStore } from "./draft";
import { askLinks } from "./server";

export const DRAGGED_TYPE = "application/x-trainyard-node";

interface CanvasProps {
  store: DraftStore;
  nodes: readonly GraphNode[];
  groups: PortGroups;
  version: number;
  selection: ReadonlySet<string>;
  onSelect: Dispatch<SetStateAction<ReadonlySet<string>>>;
  onAdd: (type: string, at: { x: number; y: number }) => void;
  readOnly: boolean;
}

export interface Refusal {
  code: string;
  because: string;
  instead: string;
}

interface Linking {
  node: string;
  port: string;
  answers: LinkAnswer[] | null;
}

const refusalOf = (linking: Linking | null, target: string): Refusal | null => {
  if (!linking?.answers) return null;
  if (linking.node === target) {
    return { code: "E-SPEC-GRAPH", because: "A node cannot need itself.", instead: "Link it to another node." };
  }
  const answer = linking.answers.find((entry) => entry.target === target && entry.port === linking.port);
  if (answer) return answer.allowed ? null : answer;
  return { code: "", because: `The service does not know ${target} yet.`, instead: "Try again." };
};

export function Canvas({ store, nodes, groups, version, selection, onSelect, onAdd, readOnly }: CanvasProps) {
  const flow = useReactFlow();
  const [flowNodes, setFlowNodes] = useState<FlowNode[]>([]);
  const [edges, setEdges] = useState<Edge[]>([]);
  const linking = useRef<Linking | null>(null);
  const [hint, setHint] = useState<{ text: Refusal | null; target: string } | null>(null);
  const [answered, setAnswered] = useState(0);
  const [refusal, setRefusal] = useState<Refusal | null>(null);
  const dataCache = useRef(new Map<string, { key: string; data: NodeData }>());

  // Positions belong to the canvas while somebody drags; the store learns them at the end of the drag.
  useEffect(() => {
    const { places } = store.get();
    setFlowNodes((before) => {
      const previous = new Map(before.map((item) => [item.id, item]));
      return nodes.map((node) => {
        const old = previous.get(node.id);
        const data = cached(dataCache.current, dataOf(node, groups), node.id);
        const position = places[node.id] ?? old?.position ?? { x: 0, y: 0 };
        const selected = selection.has(node.id);
        const same =
          old &&
          old.data === data &&
          old.selected === selected &&
          old.position.x === position.x &&
          old.position.y === position.y;
        if (same) return old;
        return { ...old, id: node.id, type: "chain" as const, data, position, selected, ariaLabel: labelOf(node) };
      });
    });
    setEdges((before) => {
      const selected = new Set(before.filter((item) => item.selected).map((item) => item.id));
      return edgesOf(nodes, groups, !readOnly).map((edge) => ({ ...edge, selected: selected.has(edge.id) }));
    });
  }, [nodes, groups, version, selection, store, readOnly]);

  const onNodesChange = useCallback(
    (changes: NodeChange<FlowNode>[]) => {
      const applied = changes.filter((change) => change.type !== "select" && change.type !== "remove");
      if (applied.length) setFlowNodes((before) => applyNodeChanges(applied, before));
      const selected = changes.filter((change) => change.type === "select");
      if (selected.length) {
        onSelect((before) => {
          const next = new Set(before);
          for (const change of selected) {
            if (change.selected) next.add(change.id);
            else next.delete(change.id);
          }
          return next;
        });
      }
      const moved = changes.filter(
        (change) => change.type === "position" && change.position && change.dragging === false,
      );
      if (moved.length) {
        store.move(
          Object.fromEntries(
            moved.map((entry) => [
              (entry as { id: string }).id,
              (entry as { position: { x: number; y: number } }).position,
            ]),
          ),
        );
      }
    },
    [onSelect, store],
  );

  const onEdgesChange = useCallback((changes: EdgeChange[]) => {
    const applied = changes.filter((change) => change.type !== "remove");
    if (applied.length) setEdges((before) => applyEdgeChanges(applied, before));
  }, []);

  const isValidConnection = useCallback((connection: Connection | Edge) => {
    const reason = refusalOf(linking.current, connection.target);
    return reason === null;
  }, []);

  const onConnectStart = (_: unknown, { nodeId, handleId }: OnConnectStartParams) => {
    if (!nodeId || !handleId) return;
    setRefusal(null);
    const started: Linking = { node: nodeId, port: handleId, answers: null };
    linking.current = started;
    askLinks(store.get().draft, nodeId).then(
      (answers) => {
        started.answers = answers;
        if (linking.current === started) mark(answers, handleId);
      },
      (error: unknown) => {
        started.answers = [];
        setRefusal({ code: "", because: String((error as Error).message), instead: "" });
      },
    );
  };

  /** Show at once which nodes would refuse the link, the one under a resting pointer included. */
  const mark = (answers: LinkAnswer[], port: string) => {
    setAnswered((count) => count + 1);
    const refused = new Set(
      answers.filter((answer) => answer.port === port && !answer.allowed).map((answer) => answer.target),
    );
    setFlowNodes((before) =>
      before.map((item) => (refused.has(item.id) ? { ...item, className: "is-refused" } : item)),
    );
  };

  const onConnectEnd = async (event: MouseEvent | TouchEvent, ended: FinalConnectionState) => {
    const started = linking.current;
    const target = ended.toNode?.id ?? nodeAt(event);
    setHint(null);
    setFlowNodes((before) => before.map((item) => (item.className ? { ...item, className: undefined } : item)));
    if (!started || !target || target === started.node) {
      linking.current = null;
      return;
    }
    if (!started.answers) started.answers = await askLinks(store.get().draft, started.node).catch(() => []);
    const reason = refusalOf(started, target);
    if (reason) setRefusal(reason);
    else store.changeNodes("", linked(store.get().draft.nodes, started.node, target));
    linking.current = null;
  };

  const onDelete = ({ nodes: gone, edges: cut }: { nodes: { id: string }[]; edges: Edge[] }) => {
    const ids = new Set(gone.map((entry) => entry.id));
    let next = without(store.get().draft.nodes, ids);
    for (const edge of cut)
      if (!ids.has(edge.source) && !ids.has(edge.target)) next = unlinked(next, edge.source, edge.target);
    store.changeNodes("", next);
  };

  const onDrop = (event: DragEvent) => {
    const type = event.dataTransfer.getData(DRAGGED_TYPE);
    if (!type) return;
    event.preventDefault();
    onAdd(type, flow.screenToFlowPosition({ x: event.clientX - 80, y: event.clientY - 30 }));
  };

  return (
    <div className="editor-canvas" role="region" aria-label="Canvas of the chain">
      <ReactFlow
        nodes={flowNodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        onNodesChange={onNodesChange}
        onEdgesChange={onEdgesChange}
        onConnectStart={onConnectStart}
        onConnectEnd={(event, ended) => void onConnectEnd(event, ended)}
        isValidConnection={isValidConnection}
        onDelete={onDelete}
        onDrop={onDrop}
        onDragOver={(event) => {
          event.preventDefault();
          event.dataTransfer.dropEffect = "move";
        }}
        nodesDraggable={!readOnly}
        nodesConnectable={!readOnly}
        deleteKeyCode={readOnly ? null : DELETE_KEYS}
        connectionRadius={40}
        selectNodesOnDrag={false}
        minZoom={0.1}
        onlyRenderVisibleElements={false}
        proOptions={HIDE}
        onInit={(instance) => nodes.length > 0 && window.setTimeout(() => void instance.fitView(FIT), 60)}
      >
        <Background />
        <Controls showInteractive={false} fitViewOptions={FIT} />
        {nodes.length > 12 && <MiniMap pannable zoomable ariaLabel="The whole chain, small" />}
        {nodes.length === 0 && (
          <Panel position="top-center" className="editor-start">
            <h2>Build a chain</h2>
            <p>
              Drag a node from the list above to here, or press its button. Then drag from a port on the right of a node
              to the next node.
            </p>
            <p>
              Or begin with a template: <Link href="/chains">Chains</Link> lists them, and each opens here.
            </p>
          </Panel>
        )}
        <LinkHint linking={linking} answered={answered} hint={hint} setHint={setHint} />
        <Panel position="top-center">
          <div aria-live="assertive">
            {refusal && (
              <div className="link-hint is-refused" role="status">
                <strong>The link is refused.</strong> <Prose text={refusal.because} /> <Prose text={refusal.instead} />{" "}
                {refusal.code && <code>{refusal.code}</code>}{" "}
                <button type="button" onClick={() => setRefusal(null)}>
                  Close
                </button>
              </div>
            )}
          </div>
        </Panel>
      </ReactFlow>
    </div>
  );
}

const DELETE_KEYS = ["Delete", "Backspace"];
const HIDE = { hideAttribution: true };
export const FIT = { padding: 0.05, maxZoom: 1 };

function cached(cache: Map<string, { key: string; data: NodeData }>, data: NodeData, id: string): NodeData {
  const key = JSON.stringify(data);
  const previous = cache.get(id);
  if (previous?.key === key) return previous.data;
  cache.set(id, { key, data });
  return data;
}

/** The node under the pointer, so that a link may end anywhere on it. */
function nodeAt(event: MouseEvent | TouchEvent): string | null {
  const point = "changedTouches" in event ? event.changedTouches[0] : event;
  const element = point && document.elementFromPoint(point.clientX, point.clientY);
  return element?.closest(".react-flow__node")?.getAttribute("data-id") ?? null;
}

interface LinkHintProps {
  linking: { current: Linking | null };
  answered: number;
  hint: { text: Refusal | null; target: string } | null;
  setHint: (hint: { text: Refusal | null; target: string } | null) => void;
}

/** While a link is dragged over a node: whether the node takes it, and if not, why. */
function LinkHint({ linking, answered, hint, setHint }: LinkHintProps) {
  const pointer = useRef<PointerEvent | null>(null);
  useEffect(() => {
    let hovered = "";
    const look = (event: PointerEvent) => {
      pointer.current = event;
      const started = linking.current;
      if (!started?.answers) return;
      const target = nodeAt(event);
      if ((target ?? "") === hovered) return;
      hovered = target ?? "";
      setHint(target && target !== started.node ? { target, text: refusalOf(started, target) } : null);
    };
    window.addEventListener("pointermove", look);
    if (pointer.current) look(pointer.current); // the answer may arrive when the pointer rests on a node already
    return () => window.removeEventListener("pointermove", look);
  }, [linking, answered, setHint]);
  if (!hint) return null;
  return (
    <Panel position="bottom-center">
      <div className={`link-hint${hint.text ? " is-refused" : ""}`} role="status">
        {hint.text ? (
          <>
            <strong>✕ {hint.target}:</strong> <Prose text={hint.text.because} /> <Prose text={hint.text.instead} />{" "}
            <code>{hint.text.code}</code>
          </>
        ) : (
          <>
            <strong>✓ {hint.target}</strong> takes it.
          </>
        )}
      </div>
    </Panel>
  );
}
