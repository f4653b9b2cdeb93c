// A job on the backend `script`, with one of the scripts of this home.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import type { TrainingScript } from "../../api/schema";
import { ProblemNote } from "../../components/notes";
import { Section } from "../../components/page";

export function RunScript({ scripts }: { scripts: TrainingScript[] }) {
  const [script, setScript] = useState("");
  const [path, setPath] = useState("");
  const [steps, setSteps] = useState("20");
  const run = useMutation({
    mutationFn: () =>
      dataOf(
        client.POST("/api/v1/jobs", {
          body: {
            name: "script",
            backend: "script",
            dataset: { path },
            hyperparameters: { max_steps: Number(steps) },
            ...(script && { launch: { script } }),
          } as never,
        }),
      ),
  });
  return (
    <Section title="Train with a script">
      <form
        className="form-row"
        onSubmit={(event) => {
          event.preventDefault();
          run.mutate();
        }}
      >
        <div>
          <label htmlFor="run-script">Script</label>
          <select id="run-script" value={script} onChange={(event) => setScript(event.target.value)}>
            {scripts.map((entry) => (
              <option key={entry.name} value={entry.name === "built-in" ? "" : entry.name}>
                {entry.name}
              </option>
            ))}
          </select>
        </div>
        <div>
          <label htmlFor="run-path">Data set</label>
          <input id="run-path" required value={path} onChange={(event) => setPath(event.target.value)} />
        </div>
        <div>
          <label htmlFor="run-steps">Steps</label>
          <input
            id="run-steps"
            type="number"
            min="1"
            required
            value={steps}
            onChange={(event) => setSteps(event.target.value)}
          />
        </div>
        <button className="primary" disabled={run.isPending} aria-busy={run.isPending}>
          Train
        </button>
      </form>
      {run.error && <ProblemNote error={run.error} />}
      {run.data && (
        <p role="status">
          It is trained as <Link href={`/jobs/${run.data.id}`}>{run.data.id}</Link>.
        </p>
      )}
    </Section>
  );
}
