// The chain itself, while no node is selected: name and description.

import { Prose } from "../../../components/prose";
import type { Draft, DraftStore } from "./draft";
import type { CheckReason } from "./server";

interface ChainSettingsProps {
  store: DraftStore;
  draft: Draft;
  reasons: readonly CheckReason[];
  readOnly: boolean;
}

export function ChainSettings({ store, draft, reasons, readOnly }: ChainSettingsProps) {
  const wrong = (field: string) => reasons.filter((reason) => !reason.node && reason.field === field);
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
          aria-invalid={wrong("name").length > 0 || undefined}
          aria-describedby="chain-name-help"
          onChange={(event) => set("name", event.target.value)}
        />
        <FieldReasons id="chain-name-help" reasons={wrong("name")} />
      </div>
      <div className="setting">
        <label htmlFor="chain-description">Description</label>
        <textarea
          id="chain-description"
          rows={3}
          value={draft.description ?? ""}
          disabled={readOnly}
          aria-invalid={wrong("description").length > 0 || undefined}
          aria-describedby="chain-description-help"
          onChange={(event) => set("description", event.target.value)}
        />
        <FieldReasons id="chain-description-help" reasons={wrong("description")} />
      </div>
      <p className="quiet">
        {draft.nodes.length === 0
          ? "Drag a node from the palette onto the canvas, or press its button."
          : "Select a node to see its links and settings. Drag from a port on the right of a node to another node."}
      </p>
    </>
  );
}

function FieldReasons({ id, reasons }: { id: string; reasons: readonly CheckReason[] }) {
  return (
    <div id={id}>
      {reasons.map((reason, index) => (
        <p key={index} className="wrong">
          <Prose text={reason.because} /> <Prose text={reason.instead} /> <code>{reason.code}</code>
        </p>
      ))}
    </div>
  );
}
