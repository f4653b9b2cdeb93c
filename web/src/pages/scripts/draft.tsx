// What the trainer of a chain would be as a script of its own: `python train.py spec.json` next to its rows.

import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { client, dataOf } from "../../api/client";
import { Empty, ProblemNote } from "../../components/notes";
import { Queried, Section } from "../../components/page";
import { Link } from "wouter";

export function Draft() {
  const [chain, setChain] = useState("");
  const [node, setNode] = useState("");
  const chains = useQuery({
    queryKey: ["chains", "names"],
    queryFn: () => dataOf(client.GET("/api/v1/chains", { params: { query: { limit: 200 } } })),
  });
  const draft = useMutation({
    mutationFn: async () => {
      const stored = await dataOf(client.GET("/api/v1/chains/{chain}", { params: { path: { chain } } }));
      const body = { target: stored.body, ...(node && { node }) };
      return dataOf(client.POST("/api/v1/scripts/draft", { body: body as any }));
    },
  });
  return (
    <Section title="Script of a chain's trainer">
      <Queried query={chains}>
        {({ chains: found }) =>
          found.length === 0 ? (
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
                  }}
                >
                  <option value="">choose one</option>
                  {found.map((one) => (
                    <option key={one.id} value={one.id}>
                      {one.name}
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
          <pre className="installation" tabIndex={0} aria-label="Spec of the script">
            {JSON.stringify(draft.data.spec, null, 2)}
          </pre>
          <details>
            <summary>train.py</summary>
            <pre className="installation" tabIndex={0} aria-label="Text of the script">
              {draft.data.text}
            </pre>
          </details>
        </>
      )}
    </Section>
  );
}
