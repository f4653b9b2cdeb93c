// The chain itself, while no node is selected: name and description.

import type { Draft, DraftStore } from "./draft";

export function ChainSettings({ store, draft, readOnly }: { store: DraftStore; draft: Draft; readOnly: boolean }) {
  const set = (name: "name" | "description", text: string) =>
    store.change(`chain ${name}`, { ...store.get().draft, [name]: text });
  return (
    <>
      <h2>Chain</h2>
      <div className="setting">
        <label htmlFor="chain-name">Name</label>
        <input
          id="chain-name"
          value={draft.name ?? ""}
          disabled={readOnly}
          onChange={(event) => set("name", event.target.value)}
        />
      </div>
      <div className="setting">
        <label htmlFor="chain-description">Description</label>
        <textarea
          id="chain-description"
          rows={3}
          value={draft.description ?? ""}
          disabled={readOnly}
          onChange={(event) => set("description", event.target.value)}
        />
      </div>
      <p className="quiet">
        {draft.nodes.length === 0
          ? "Drag a node from the palette onto the canvas, or press its button."
          : "Select a node to see its links and settings. Drag from a port on the right of a node to another node."}
      </p>
    </>
  );
}
