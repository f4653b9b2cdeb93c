// What a version was made from and what became of it: the service's picture, its nodes as a table, and proofs to keep.

import { useMutation, useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { saveFile } from "../../components/save";
import { Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import "../../styles/graph.css";

type Lineage = components["schemas"]["Lineage"];
type LineageNode = components["schemas"]["LineageNode"];

export function LineagePanel({ name }: { name: string }) {
  const lineage = useQuery({
    queryKey: ["adapter-lineage", name],
    queryFn: () => dataOf(client.GET("/api/v1/lineage", { params: { query: { adapter: name, svg: true } } })),
  });
  return (
    <Section title="Lineage" actions={lineage.data && <Downloads name={name} lineage={lineage.data} />}>
      <Queried query={lineage}>
        {(data) => (
          <>
            <div className="lineage-frame" tabIndex={0} role="region" aria-label={`Picture of the lineage of ${name}`}>
              <img
                src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(data.svg ?? "")}`}
                alt={summaryOf(data)}
              />
            </div>
            {(data.graph.notes ?? []).map((note) => (
              <p key={note} className="quiet">
                {note}
              </p>
            ))}
            <details>
              <summary>{data.graph.nodes.length.toLocaleString()} nodes as a table, with their proofs</summary>
              <Nodes name={name} nodes={data.graph.nodes} />
            </details>
          </>
        )}
      </Queried>
    </Section>
  );
}

const SHOWN = 200;

function Nodes({ name, nodes }: { name: string; nodes: readonly LineageNode[] }) {
  const proof = useMutation({
    mutationFn: async (entry: number) => {
      const path = { entry: String(entry) };
      const { proof } = await dataOf(client.GET("/api/v1/ledger/entries/{entry}/proof", { params: { path } }));
      saveFile(`entry-${entry}.tlog-proof`, proof, "text/plain");
    },
  });
  return (
    <>
      <Table
        caption={`Lineage of ${name}`}
        rows={nodes.slice(0, SHOWN)}
        rowKey={(node) => node.id}
        columns={[
          { title: "Kind", cell: (node) => node.kind },
          { title: "Name", cell: (node) => node.label },
          { title: "About", cell: (node) => `${node.detail ?? ""}${node.missing ? " (deleted)" : ""}`.trim() },
          {
            title: "SHA-256",
            cell: (node) => node.sha256 && <code title={node.sha256}>{node.sha256.slice(0, 16)}</code>,
          },
          {
            title: "Ledger",
            cell: (node) =>
              node.entry != null && (
                <ActionButton mutation={proof} variables={node.entry}>
                  Proof of entry {node.entry}
                </ActionButton>
              ),
          },
        ]}
      />
      {nodes.length > SHOWN && <p>{(nodes.length - SHOWN).toLocaleString()} more are in the JSON file.</p>}
    </>
  );
}

function Downloads({ name, lineage }: { name: string; lineage: Lineage }) {
  const file = name.replaceAll("/", "-");
  const save = (end: string, value: unknown) =>
    saveFile(`${file}.${end}`, JSON.stringify(value, null, 1), "application/json");
  return (
    <>
      <button type="button" onClick={() => saveFile(`${file}.svg`, lineage.svg ?? "", "image/svg+xml")}>
        Picture
      </button>
      <button type="button" onClick={() => save("lineage.json", lineage.graph)}>
        JSON
      </button>
      {lineage.statement && (
        <button type="button" onClick={() => save("intoto.json", lineage.statement)}>
          Provenance statement
        </button>
      )}
    </>
  );
}

/** The graph in a sentence, for readers who do not see the picture. */
function summaryOf({ graph }: Lineage): string {
  const counts = new Map<string, number>();
  for (const { kind } of graph.nodes) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return `Lineage of ${graph.adapter}: ${[...counts].map(([kind, count]) => `${count} ${kind}`).join(", ")}`;
}
