import { beforeEach, describe, expect, it, vi } from "vitest";
import {
  setConfig,
  copies,
  DraftStore,
  draftKey,
  freeId,
  addLink,
  renameNode,
  removeLink,
  removeNodes,
  type DraftNode,
} from "./draft";

const node = (id: string, ...needs: string[]): DraftNode => ({ id, type: id.split("-")[0]!, needs, config: {} });
const CHAIN = [node("source"), node("validator", "source"), node("trainer", "validator")];
const KEY = draftKey("chain-1");

beforeEach(() => {
  const storage = new Map<string, string>();
  vi.stubGlobal("localStorage", {
    getItem: (key: string) => storage.get(key) ?? null,
    setItem: (key: string, text: string) => storage.set(key, text),
    removeItem: (key: string) => storage.delete(key),
  });
});

describe("nodes", () => {
  it("get the first id that is free", () => {
    expect(freeId([], "data_source")).toBe("data-source");
    expect(freeId([node("trainer"), node("trainer-2")], "trainer")).toBe("trainer-3");
    expect(freeId([node("trainer"), node("trainer-2")], "trainer-2")).toBe("trainer-3");
  });

  it("are linked once and unlinked", () => {
    const once = addLink(CHAIN, "source", "trainer");
    expect(once[2]!.needs).toEqual(["validator", "source"]);
    expect(addLink(once, "source", "trainer")[2]).toBe(once[2]);
    expect(removeLink(once, "validator", "trainer")[2]!.needs).toEqual(["source"]);
  });

  it("take their links along when they go or get another id", () => {
    expect(removeNodes(CHAIN, new Set(["validator"]))).toEqual([node("source"), node("trainer")]);
    expect(renameNode(CHAIN, "validator", "checked")[2]!.needs).toEqual(["checked"]);
    expect(setConfig(CHAIN, "trainer", { seed: 1 })[2]!.config).toEqual({ seed: 1 });
  });

  it("are copied with the links among them and none from outside", () => {
    expect(copies(CHAIN, CHAIN.slice(1))).toEqual([
      { ...node("validator-2"), type: "validator" },
      { ...node("trainer-2", "validator-2"), type: "trainer" },
    ]);
  });
});

describe("DraftStore", () => {
  const positions = { source: { x: 1, y: 2 } };

  it("undoes and redoes each step", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN });
    store.changeNodes("", CHAIN.slice(1));
    store.changeNodes("", []);
    store.undo();
    expect(store.get().draft.nodes).toEqual(CHAIN.slice(1));
    store.undo();
    expect(store.get().draft.nodes).toEqual(CHAIN);
    store.redo();
    expect(store.get().draft.nodes).toEqual(CHAIN.slice(1));
    store.changeNodes("", CHAIN);
    expect(store.get().future).toEqual([]);
  });

  it("takes quick changes of one setting as one step, and those of two as two", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN });
    for (const seed of [1, 2, 3]) store.changeNodes("config trainer", setConfig(CHAIN, "trainer", { seed }));
    expect(store.get().past).toHaveLength(1);
    store.changeNodes("config source", setConfig(CHAIN, "source", { seed: 1 }));
    expect(store.get().past).toHaveLength(2);
  });

  it("is not dirty after a drag, and is undone after it", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN });
    store.move(positions);
    expect(store.get()).toMatchObject({ positions, dirty: false });
    store.undo();
    expect(store.get().positions).toEqual({});
  });

  it("begins with what an earlier visit has kept, and with the revision that it was made from", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN }, "etag-1");
    store.changeNodes("", [], positions);
    const later = new DraftStore(KEY, { nodes: CHAIN }, "etag-2");
    expect(later.restore()).toBe(true);
    expect(later.get()).toMatchObject({ draft: { nodes: [] }, positions, dirty: true });
    expect(later.base).toBe("etag-1");
  });

  it("keeps only places of a draft that is saved", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN });
    store.changeNodes("", [], positions);
    store.markSaved("etag-2", store.get().draft);
    const later = new DraftStore(KEY, { nodes: CHAIN }, "etag-2");
    expect(later.restore()).toBe(false);
    expect(later.get()).toMatchObject({ draft: { nodes: CHAIN }, positions, dirty: false });
  });

  it("stays dirty where something was changed while it was saved", () => {
    const store = new DraftStore(KEY, { nodes: CHAIN });
    store.changeNodes("", []);
    const { draft } = store.get();
    store.changeNodes("", CHAIN);
    store.markSaved("etag-2", draft);
    expect(store.get().dirty).toBe(true);
  });

  it("forgets what cannot be read", () => {
    localStorage.setItem(KEY, "{");
    expect(new DraftStore(KEY).restore()).toBe(false);
    expect(localStorage.getItem(KEY)).toBeNull();
  });
});
