// The nodes of a run as a graph that changes while it is running; a node shows its lines and what it has left.

import { useState } from "react";
import { ChainGraph } from "../../components/graph";
import { Empty } from "../../components/notes";
import { Queried, Section } from "../../components/page";
import { useRunNodes } from "./editor/server";
import { NodeResult } from "./node_result";

export default function RunGraph({ run }: { run: string }) {
  const [selectedNode, setSelectedNode] = useState("");
  const nodes = useRunNodes(run);
  return (
    <Section title="Chain">
      <Queried query={nodes}>
        {(data) =>
          data.nodes.length === 0 ? (
            <Empty title="The run has not begun">
              <p>Its nodes appear here when a worker takes it.</p>
            </Empty>
          ) : (
            <>
              <ChainGraph
                nodes={data.nodes}
                selected={selectedNode}
                onSelect={setSelectedNode}
                label="Nodes of the run"
              />
              {selectedNode && <NodeResult key={selectedNode} run={run} node={selectedNode} isRunPage />}
            </>
          )
        }
      </Queried>
    </Section>
  );
}
