// The draft of a chain with its history: undo, redo, and a copy in this browser until it is saved.

import { useSyncExternalStore } from "react";
import type { Place } from "../../../components/graph";

export interface DraftNode {
  id: string;
  type: string;
  needs: string[];
  config: Record<string, unknown>;
}

export interface Draft {
  name?: string;
  description?: string;
  tenant?: string;
  nodes: DraftNode[];
}

interface Snapshot {
  draft: Draft;
  positions: Record<string, Place>;
}

export interface EditorState extends Snapshot {
  past: readonly Snapshot[];
  future: readonly Snapshot[];
  /** Whether the draft differs from the stored chain. */
  dirty: boolean;
  /** Grows with every change that the canvas did not make itself. */
  version: number;
}

const MOST_STEPS = 200;
/** Changes of one setting within this time are one step of the history. */
const SAME_CHANGE_MS = 1000;

/** Where this browser keeps the draft of a stored chain, of a template, or of a new one. */
export const draftKey = (subject: string): string => `trainyard.draft.${subject}`;

const EMPTY: Draft = { name: "chain", nodes: [] };

export class DraftStore {
  private state: EditorState;
  private readonly listeners = new Set<() => void>();
  /** ETag of the revision that the draft was made from: a newer one of somebody else is not overwritten unseen. */
  base: string;
  private lastChange = { subject: "", time: 0 };

  constructor(
    private key: string,
    start: Draft = EMPTY,
    private readonly initialText = "",
  ) {
    this.base = initialText;
    this.state = { draft: start, positions: {}, past: [], future: [], dirty: false, version: 0 };
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly get = (): EditorState => this.state;

  private set(next: Partial<EditorState>): void {
    this.state = { ...this.state, ...next };
    this.keep();
    for (const listener of this.listeners) listener();
  }

  /** Change the draft as one step; changes of the same `what` in a row are one. */
  change(subject: string, draft: Draft, positions: Record<string, Place> = this.state.positions): void {
    const timestamp = Date.now();
    const same =
      subject !== "" && subject === this.lastChange.subject && timestamp - this.lastChange.time < SAME_CHANGE_MS;
    this.lastChange = { subject, time: timestamp };
    const { past, version } = this.state;
    const snapshot = { draft: this.state.draft, positions: this.state.positions };
    this.set({
      draft,
      positions,
      past: same ? past : [...past, snapshot].slice(-MOST_STEPS),
      future: [],
      dirty: true,
      version: version + 1,
    });
  }

  changeNodes(subject: string, nodes: DraftNode[], positions?: Record<string, Place>): void {
    this.change(subject, { ...this.state.draft, nodes }, positions);
  }

  /** Places after a drag: a step of the history, which makes a stored chain no other one. */
  move(positions: Record<string, Place>): void {
    const { draft, past } = this.state;
    const snapshot = { draft, positions: this.state.positions };
    this.lastChange = { subject: "", time: 0 };
    this.set({
      positions: { ...this.state.positions, ...positions },
      past: [...past, snapshot].slice(-MOST_STEPS),
      future: [],
    });
  }

  /** Places that nobody chose, such as those of the layout; no step of the history. */
  place(positions: Record<string, Place>): void {
    this.set({ positions: { ...this.state.positions, ...positions }, version: this.state.version + 1 });
  }

  undo(): void {
    const { past, future, draft, positions, version } = this.state;
    const snapshot = past.at(-1);
    if (!snapshot) return;
    this.lastChange = { subject: "", time: 0 };
    this.set({
      ...snapshot,
      past: past.slice(0, -1),
      future: [{ draft, positions }, ...future],
      dirty: true,
      version: version + 1,
    });
  }

  redo(): void {
    const { past, future, draft, positions, version } = this.state;
    const [next, ...laterSteps] = future;
    if (!next) return;
    this.lastChange = { subject: "", time: 0 };
    this.set({ ...next, past: [...past, { draft, positions }], future: laterSteps, dirty: true, version: version + 1 });
  }

  /** Begin with a chain that is stored. */
  open(draft: Draft): void {
    this.base = this.initialText;
    this.lastChange = { subject: "", time: 0 };
    this.set({
      draft,
      positions: this.state.positions,
      past: [],
      future: [],
      dirty: false,
      version: this.state.version + 1,
    });
  }

  /** Note that `draft` is stored. What was changed while it was sent is still to be saved. */
  markSaved(etag: string, draft: Draft): void {
    this.base = etag;
    this.set({ dirty: this.state.draft !== draft });
  }

  /** Keep the draft under the id of the chain that it has become, so that its page begins where this one ends. */
  moveTo(key: string): void {
    localStorage.removeItem(this.key);
    this.key = key;
    this.keep();
  }

  /** Keep the draft in this browser, so that a reload loses nothing. */
  private keep(): void {
    const { draft, positions, dirty } = this.state;
    localStorage.setItem(this.key, JSON.stringify({ draft: dirty ? draft : null, base: this.base, places: positions }));
  }

  /** Take up what an earlier visit kept. Return whether there was an unsaved draft. */
  restore(): boolean {
    try {
      const entry = JSON.parse(localStorage.getItem(this.key) ?? "null");
      if (!entry) return false;
      if (entry.draft) this.base = entry.base ?? this.base;
      this.set({
        positions: entry.places ?? {},
        ...(entry.draft ? { draft: entry.draft, dirty: true } : {}),
        version: this.state.version + 1,
      });
      return Boolean(entry.draft);
    } catch {
      localStorage.removeItem(this.key);
      return false;
    }
  }
}

export const useDraft = (store: DraftStore): EditorState => useSyncExternalStore(store.subscribe, store.get);

// Changes of nodes

/** The first of `trainer`, `trainer-2` … that no node has. */
export function freeId(nodes: readonly DraftNode[], type: string): string {
  const stem = type.replaceAll("_", "-").replace(/-\d+$/, "");
  const ids = new Set(nodes.map((node) => node.id));
  for (let count = 1; ; count += 1) {
    const id = count === 1 ? stem : `${stem}-${count}`;
    if (!ids.has(id)) return id;
  }
}

export const removeNodes = (nodes: readonly DraftNode[], ids: ReadonlySet<string>): DraftNode[] =>
  nodes
    .filter((node) => !ids.has(node.id))
    .map((node) =>
      node.needs.some((need) => ids.has(need)) ? { ...node, needs: node.needs.filter((need) => !ids.has(need)) } : node,
    );

export const addLink = (nodes: readonly DraftNode[], source: string, target: string): DraftNode[] =>
  nodes.map((node) =>
    node.id === target && !node.needs.includes(source) ? { ...node, needs: [...node.needs, source] } : node,
  );

export const removeLink = (nodes: readonly DraftNode[], source: string, target: string): DraftNode[] =>
  nodes.map((node) => (node.id === target ? { ...node, needs: node.needs.filter((need) => need !== source) } : node));

export const renameNode = (nodes: readonly DraftNode[], oldId: string, newId: string): DraftNode[] =>
  nodes.map((node) => ({
    ...node,
    id: node.id === oldId ? newId : node.id,
    needs: node.needs.map((need) => (need === oldId ? newId : need)),
  }));

export const setConfig = (nodes: readonly DraftNode[], id: string, config: Record<string, unknown>): DraftNode[] =>
  nodes.map((node) => (node.id === id ? { ...node, config } : node));

/** Copies of some nodes with ids of their own; links among them are copied, those from outside are not. */
export function copies(nodes: readonly DraftNode[], sources: readonly DraftNode[]): DraftNode[] {
  const allNodes = [...nodes];
  const names = new Map<string, string>();
  for (const node of sources) {
    const id = freeId(allNodes, node.id);
    names.set(node.id, id);
    allNodes.push({ ...node, id });
  }
  return sources.map((node) => ({
    ...structuredClone(node),
    id: names.get(node.id)!,
    needs: node.needs.flatMap((need) => names.get(need) ?? []),
  }));
}
