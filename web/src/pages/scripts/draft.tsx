// The trainer of a chain as a script of its own: `python train.py spec.json` next to its rows.

import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { TrainingScriptList } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useCancelable } from "../../components/cancelable";
import { Empty, ProblemNote } from "../../components/notes";
import { Queried, Section } from "../../components/page";
import { Link } from "wouter";
import { expand } from "../chains/editor/server";

export const BUILT_IN = "built-in";

interface Spec {
  nodes: { id: string; config: Record<string, unknown> }[];
}

/** The chain with one trainer on the backend `script`. */
const withScript = (spec: Spec, node: string, script: string): Spec => ({
  ...spec,
  nodes: spec.nodes.map((entry) => {
    if (entry.id !== node) return entry;
    const launch = { ...(entry.config.launch as object), ...(script !== BUILT_IN && { script }) };
    return { ...entry, config: { ...entry.config, backend: "script", launch } };
  }),
});

interface Drafted {
  target: Record<string, unknown>;
  node: string;
  script: string;
  name: string;
}

/** Store a chain under its name, as a new revision where there is one: a run over the network takes stored chains. */
async function store(spec: { name: string }): Promise<string> {
  const body = spec as never;
  const { chains } = await dataOf(client.GET("/api/v1/chains", { params: { query: { limit: 200 } } }));
  const storedChain = chains.find((chain) => chain.name === spec.name);
  if (!storedChain) return (await dataOf(client.POST("/api/v1/chains", { body }))).id;
  const path = { chain: storedChain.id };
  const { etag } = await dataOf(client.GET("/api/v1/chains/{chain}", { params: { path } }));
  const header = { "If-Match": `"${etag}"` };
  return (await dataOf(client.PUT("/api/v1/chains/{chain}", { params: { path, header }, body }))).id;
}

interface DraftProps {
  list: TrainingScriptList | undefined;
  /** Put a text into the editor, to be saved under a name. */
  onEdit: (name: string, text: string) => void;
}

export function Draft({ list, onEdit }: DraftProps) {
  const login = useLogin();
  const [chain, setChain] = useState("");
  const [node, setNode] = useState("");
  const chains = useQuery({
    queryKey: ["chains", "names"],
    queryFn: () => dataOf(client.GET("/api/v1/chains", { params: { query: { limit: 200 } } })),
  });
  const draft = useCancelable(async (_: void, signal) => {
    const storedChain = await dataOf(client.GET("/api/v1/chains/{chain}", { params: { path: { chain } }, signal }));
    const body = { target: storedChain.body, ...(node && { node }) };
    const script = await dataOf(client.POST("/api/v1/scripts/draft", { body: body as never, signal }));
    return { ...script, target: storedChain.body as Record<string, unknown>, name: storedChain.name };
  });
  const train = useMutation({
    mutationFn: async ({ target, node, script, name }: Drafted) => {
      const { spec } = await expand({ target });
      const chain = await store({ ...withScript(spec as unknown as Spec, node, script), name: `${name}-${script}` });
      const startedRun = client.POST("/api/v1/chains/{chain}/run", { params: { path: { chain } }, body: {} as never });
      return dataOf(startedRun) as Promise<{ id: string }>;
    },
  });
  return (
    <Section title="Script of a chain's trainer">
      <Queried query={chains}>
        {({ chains: chainList }) =>
          chainList.length === 0 ? (
            <Empty title="No chain is stored yet">
              <p>
                Build one on <Link href="/chains">Chains</Link>; its trainer is shown here as a script with its spec.
              </p>
            </Empty>
          ) : (
            <form
              className="form-row"
              onSubmit={(event) => {
                event.preventDefault();
                train.reset();
                draft.mutate();
              }}
            >
              <div>
                <label htmlFor="draft-chain">Chain</label>
                <select
                  id="draft-chain"
                  required
                  value={chain}
                  onChange={(event) => {
                    setChain(event.target.value);
                    draft.reset();
                    train.reset();
                  }}
                >
                  <option value="">choose one</option>
                  {chainList.map((entry) => (
                    <option key={entry.id} value={entry.id}>
                      {entry.name}
                    </option>
                  ))}
                </select>
              </div>
              <div>
                <label htmlFor="draft-node">Trainer, if it has several</label>
                <input id="draft-node" value={node} onChange={(event) => setNode(event.target.value)} />
              </div>
              <button disabled={draft.isPending} aria-busy={draft.isPending}>
                Show
              </button>
              {draft.isPending && (
                <button type="button" onClick={draft.cancel}>
                  Cancel
                </button>
              )}
            </form>
          )
        }
      </Queried>
      {draft.error && <ProblemNote error={draft.error} />}
      {draft.data && (
        <>
          <p role="status">
            {draft.data.node} would run the script {draft.data.script} with this spec.json:
          </p>
          <div className="actions">
            {list?.can_edit && login.allows("admin") && (
              <button type="button" onClick={() => onEdit(`${draft.data.name}-${draft.data.node}`, draft.data.text)}>
                Edit as a new script
              </button>
            )}
            {list?.can_run && login.allows("run") && (
              <ActionButton mutation={train} variables={draft.data}>
                Train this chain with it
              </ActionButton>
            )}
            {train.data && (
              <span role="status">
                It runs as <Link href={`/jobs/${train.data.id}`}>{train.data.id}</Link>.
              </span>
            )}
          </div>
          <pre className="installation" tabIndex={0} aria-label="Spec of the script">
            {JSON.stringify(draft.data.spec, null, 2)}
          </pre>
          <details>
            <summary>train.py</summary>
            <pre className="installation" tabIndex={0} aria-label="Drafted script">
              {draft.data.text}
            </pre>
          </details>
        </>
      )}
    </Section>
  );
}
