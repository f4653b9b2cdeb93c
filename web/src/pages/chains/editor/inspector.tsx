// The selected node: its id, links, settings and problems; while a run is shown, its state, lines and results.

import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import type { ProblemReason } from "../../../api/client";
import type { ExpandedChain, LinkAnswer, Palette } from "../../../api/schema";
import { useChoices } from "../../../components/choices";
import { ColumnMap } from "../../../components/columns";
import { SchemaForm } from "../../../components/form";
import { Prose } from "../../../components/prose";
import { pathWith, type JsonSchema } from "../../../components/schema";
import { Upload } from "../../../components/upload";
import { NodeResult } from "../node_result";
import { Reasons } from "../reasons";
import { setConfig, addLink, renameNode, removeLink, removeNodes, type DraftNode, type DraftStore } from "./draft";
import { askLinks, defaultsOf, reasonsOf } from "./server";

interface InspectorProps {
  store: DraftStore;
  node: DraftNode;
  expansion: ExpandedChain | undefined;
  palette: Palette;
  run: string;
  onRunFrom: (node: string) => void;
  isStarting: boolean;
  onSelect: (ids: ReadonlySet<string>) => void;
  readOnly: boolean;
}

export function Inspector({
  store,
  node,
  expansion,
  palette,
  run,
  onRunFrom,
  isStarting,
  onSelect,
  readOnly,
}: InspectorProps) {
  const entry = palette.nodes.find((candidate) => candidate.type === node.type);
  const schema = entry?.settings as JsonSchema | undefined;
  const reasons = reasonsOf(expansion).filter((reason) => reason.node === node.id);
  const problems = reasons as unknown as ProblemReason[];
  const defaults = Object.fromEntries(
    Object.entries(defaultsOf(expansion, node.id)).map(([path, value]) => [`config.${path}`, value]),
  );
  const paths = Object.fromEntries(
    (["documents", "repository", "columns", "model"] as const).map((widget) => [
      widget,
      schema ? pathWith(widget, schema, "config") : "",
    ]),
  ) as Record<"documents" | "repository" | "columns" | "model", string>;
  const { choices, start } = useChoices(
    { [paths.documents]: node.config.path, [paths.repository]: node.config.repository },
    [paths.model],
  );
  const hints = start ? { [paths.documents]: `A relative path starts in \`${start}\`.` } : undefined;
  const configure = (change: (previous: Record<string, unknown>) => Record<string, unknown>) => {
    const { nodes } = store.get().draft; // an upload may end after other settings were written
    const currentConfig = nodes.find((candidate) => candidate.id === node.id)?.config ?? {};
    const next = Object.fromEntries(Object.entries(change(currentConfig)).filter(([, value]) => value !== undefined));
    store.changeNodes(`config ${node.id}`, setConfig(nodes, node.id, next));
  };
  const isSource = node.type === "data_source" && !readOnly;
  const extras = isSource
    ? {
        [paths.documents]: (
          <Upload
            documents
            onUploaded={(path) => configure((previous) => ({ ...previous, path, columns: undefined }))}
          />
        ),
      }
    : undefined;
  const controls = isSource
    ? {
        [paths.columns]: (
          <ColumnMap
            key="columns"
            path={node.config.path}
            value={node.config.columns}
            onChange={(columns) => configure((previous) => ({ ...previous, columns }))}
          />
        ),
      }
    : undefined;
  const elsewhere = reasons.filter((reason) => !reason.field.startsWith("config."));
  return (
    <>
      <h2>{node.id}</h2>
      <p className="quiet">
        <Prose text={entry?.text ?? `${node.type} is not a type of node.`} />
      </p>
      {run && <NodeResult run={run} node={node.id} />}
      {run && !readOnly && (
        <button type="button" onClick={() => onRunFrom(node.id)} disabled={isStarting} aria-busy={isStarting}>
          Run again from here
        </button>
      )}
      {elsewhere.length > 0 && <Reasons reasons={elsewhere} />}
      {schema && (
        <section aria-label={`Settings of ${node.id}`}>
          <h3>Settings</h3>
          <SchemaForm
            schema={schema}
            value={node.config}
            onChange={(config) =>
              store.changeNodes(`config ${node.id}`, setConfig(store.get().draft.nodes, node.id, config))
            }
            problems={problems}
            prefix="config"
            defaults={defaults}
            choices={choices}
            hints={hints}
            extras={extras}
            controls={controls}
          />
        </section>
      )}
      <Links key={`links of ${node.id}`} store={store} node={node} readOnly={readOnly} />
      <IdField key={node.id} store={store} node={node} onSelect={onSelect} readOnly={readOnly} />
      {!readOnly && (
        <button
          type="button"
          className="danger"
          onClick={() => {
            store.changeNodes("", removeNodes(store.get().draft.nodes, new Set([node.id])));
            onSelect(new Set());
          }}
        >
          Delete {node.id}
        </button>
      )}
    </>
  );
}

function IdField({
  store,
  node,
  onSelect,
  readOnly,
}: Pick<InspectorProps, "store" | "node" | "onSelect" | "readOnly">) {
  const id = useId();
  const [text, setText] = useState(node.id);
  const [wrong, setWrong] = useState("");
  const apply = () => {
    const { nodes } = store.get().draft;
    if (text === node.id) return setWrong("");
    if (nodes.some((candidate) => candidate.id === text)) return setWrong(`There is a node ${text} already.`);
    if (!text) return setWrong("Write an id.");
    setWrong("");
    const { [node.id]: position, ...positions } = store.get().positions;
    store.changeNodes("", renameNode(nodes, node.id, text), position ? { ...positions, [text]: position } : positions);
    onSelect(new Set([text]));
  };
  return (
    <div className="setting">
      <label htmlFor={id}>Id</label>
      <input
        id={id}
        value={text}
        disabled={readOnly}
        onChange={(event) => setText(event.target.value)}
        onBlur={apply}
        onKeyDown={(event) => event.key === "Enter" && apply()}
        aria-invalid={Boolean(wrong) || undefined}
      />
      {wrong && (
        <p className="wrong" role="alert">
          {wrong}
        </p>
      )}
    </div>
  );
}

/** Links by keyboard: inputs and outputs of the node, with the service's reasons. */
function Links({ store, node, readOnly }: Pick<InspectorProps, "store" | "node" | "readOnly">) {
  const { draft } = store.get();
  const id = useId();
  const [refusal, setRefusal] = useState<LinkAnswer | null>(null);
  const links = useQuery({
    queryKey: ["links", node.id, draft],
    queryFn: () => askLinks(draft, node.id),
    enabled: !readOnly,
    gcTime: 5_000,
  });
  const answers = (links.data ?? []).filter((row) => !row.linked);
  const give = (value: string) => {
    const answer = answers.find((candidate) => `${candidate.port} ${candidate.target}` === value);
    if (!answer) return;
    setRefusal(answer.allowed ? null : answer);
    if (answer.allowed) store.changeNodes("", addLink(draft.nodes, node.id, answer.target));
  };
  const targets = draft.nodes.filter((candidate) => candidate.needs.includes(node.id));
  return (
    <section aria-label={`Links of ${node.id}`}>
      <h3>Links</h3>
      <ul>
        {node.needs.map((need) => (
          <li key={need}>
            from {need}{" "}
            {!readOnly && (
              <button type="button" onClick={() => store.changeNodes("", removeLink(draft.nodes, need, node.id))}>
                Remove link from {need}
              </button>
            )}
          </li>
        ))}
        {targets.map((target) => (
          <li key={target.id}>to {target.id}</li>
        ))}
        {node.needs.length + targets.length === 0 && <li className="quiet">none</li>}
      </ul>
      {!readOnly && (
        <div className="setting">
          <label htmlFor={id}>Link to</label>
          <select id={id} value="" onChange={(event) => give(event.target.value)}>
            <option value="">choose a node …</option>
            {answers.map((answer) => (
              <option key={`${answer.port} ${answer.target}`} value={`${answer.port} ${answer.target}`}>
                {answer.port} to {answer.target}
                {answer.allowed ? "" : " (refused)"}
              </option>
            ))}
          </select>
          {refusal && (
            <p className="wrong" role="alert">
              <Prose text={refusal.because} /> <Prose text={refusal.instead} /> <code>{refusal.code}</code>
            </p>
          )}
        </div>
      )}
    </section>
  );
}
