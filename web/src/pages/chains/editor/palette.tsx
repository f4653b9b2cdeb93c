// The types of nodes that can be added: dragged onto the canvas, or by their button.

import type { Palette } from "../../../api/schema";
import { DRAGGED_TYPE } from "./canvas";

interface PaletteListProps {
  palette: Palette;
  onAdd: (type: string) => void;
  readOnly: boolean;
}

export function PaletteList({ palette, onAdd, readOnly }: PaletteListProps) {
  return (
    <nav className="editor-palette" aria-label="Palette">
      <h2>Nodes</h2>
      <ul>
        {palette.nodes.map((node) => (
          <li key={node.type}>
            <button
              type="button"
              title={node.text}
              draggable={!readOnly}
              disabled={readOnly}
              onClick={() => onAdd(node.type)}
              onDragStart={(event) => {
                event.dataTransfer.setData(DRAGGED_TYPE, node.type);
                event.dataTransfer.effectAllowed = "move";
              }}
            >
              + {node.type}
            </button>
          </li>
        ))}
      </ul>
    </nav>
  );
}
