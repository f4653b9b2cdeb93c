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
  places: Record<string, Place>;
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
  private lastChange = { what: "", at: 0 };

  constructor(
    private key: string,
    start: Draft = EMPTY,
    private readonly opened = "",
  ) {
    this.base = opened;
    this.state = { draft: start, places: {}, past: [], future: [], dirty: false, version: 0 };
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
  change(subject: string, draft: Draft, positions: Record<string, Place> = this.state.places): void {
    const now = Date.now();
    const same = subject !== "" && subject === this.lastChange.what && now - this.lastChange.at < SAME_CHANGE_MS;
    this.lastChange = { what: subject, at: now };
    const { past, version } = this.state;
    const before = { draft: this.state.draft, places: this.state.places };
    this.set({
      draft,
      places: positions,
      past: same ? past : [...past, before].slice(-MOST_STEPS),
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
    const before = { draft, places: this.state.places };
    this.lastChange = { what: "", at: 0 };
    this.set({
      places: { ...this.state.places, ...positions },
      past: [...past, before].slice(-MOST_STEPS),
      future: [],
    });
  }

  /** Places that nobody chose, such as those of the layout; no step of the history. */
  place(positions: Record<string, Place>): void {
    this.set({ places: { ...this.state.places, ...positions }, version: this.state.version + 1 });
  }

  undo(): void {
    const { past, future, draft, places, version } = this.state;
    const before = past.at(-1);
    if (!before) return;
    this.lastChange = { what: "", at: 0 };
    this.set({
      ...before,
      past: past.slice(0, -1),
      future: [{ draft, places }, ...future],
      dirty: true,
      version: version + 1,
    });
  }

  redo(): void {
    const { past, future, draft, places, version } = this.state;
    const [next, ...rest] = future;
    if (!next) return;
    this.lastChange = { what: "", at: 0 };
    this.set({ ...next, past: [...past, { draft, places }], future: rest, dirty: true, version: version + 1 });
  }

  /** Begin with a chain that is stored. */
  open(draft: Draft): void {
    this.base = this.opened;
    this.lastChange = { what: "", at: 0 };
    this.set({
      draft,
      places: this.state.places,
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
    const { draft, places, dirty } = this.state;
    localStorage.setItem(this.key, JSON.stringify({ draft: dirty ? draft : null, base: this.base, places }));
  }

  /** Take up what an earlier visit kept. Return whether there was an unsaved draft. */
  restore(): boolean {
    try {
      const entry = JSON.parse(localStorage.getItem(this.key) ?? "null");
      if (!entry) return false;
      if (entry.draft) this.base = entry.base ?? this.base;
      this.set({
        places: entry.places ?? {},
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

export const without = (nodes: readonly DraftNode[], ids: ReadonlySet<string>): DraftNode[] =>
  nodes
    .filter((node) => !ids.has(node.id))
    .map((node) =>
      node.needs.some((need) => ids.has(need)) ? { ...node, needs: node.needs.filter((need) => !ids.has(need)) } : node,
    );

export const linked = (nodes: readonly DraftNode[], source: string, target: string): DraftNode[] =>
  nodes.map((node) =>
    node.id === target && !node.needs.includes(source) ? { ...node, needs: [...node.needs, source] } : node,
  );

export const unlinked = (nodes: readonly DraftNode[], source: string, target: string): DraftNode[] =>
  nodes.map((node) => (node.id === target ? { ...node, needs: node.needs.filter((need) => need !== source) } : node));

export const renamed = (nodes: readonly DraftNode[], before: string, after: string): DraftNode[] =>
  nodes.map((node) => ({
    ...node,
    id: node.id === before ? after : node.id,
    needs: node.needs.map((need) => (need === before ? after : need)),
  }));

export const configured = (nodes: readonly DraftNode[], id: string, config: Record<string, unknown>): DraftNode[] =>
  nodes.map((node) => (node.id === id ? { ...node, config } : node));

/** Copies of some nodes with ids of their own; links among them are copied, those from outside are not. */
export function copies(nodes: readonly DraftNode[], copied: readonly DraftNode[]): DraftNode[] {
  const all = [...nodes];
  const names = new Map<string, string>();
  for (const node of copied) {
    const id = freeId(all, node.id);
    names.set(node.id, id);
    all.push({ ...node, id });
  }
  return copied.map((node) => ({
    ...structuredClone(node),
    id: names.get(node.id)!,
    needs: node.needs.flatMap((need) => names.get(need) ?? []),
  }));
}
