// Start a sweep: a stored chain, the settings that vary with their ranges, and options from the operation's schema.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { client, dataOf, Problem } from "../../api/client";
import type { ChainList } from "../../api/schema";
import { SchemaForm } from "../../components/form";
import { Empty, ProblemNote } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import type { JsonSchema } from "../../components/schema";

const FIRST = ["trials", "scheduler", "sampler", "metric"];
const REST = ["direction", "seed", "reduction", "first_rung", "parallel", "trainer", "name"];
/** Frequently varied settings, as suggestions; any setting of any node may be written. */
const SUGGESTED = {
  "trainer.hyperparameters.learning_rate": "loguniform(1e-5, 1e-3)",
  "trainer.hyperparameters.batch_size": "choice(2, 4, 8)",
  "trainer.hyperparameters.weight_decay": "uniform(0, 0.1)",
  "trainer.hyperparameters.warmup_ratio": "uniform(0, 0.2)",
  "trainer.method.rank": "choice(8, 16, 32, 64)",
};
const [FIRST_PATH, FIRST_RANGE] = Object.entries(SUGGESTED)[0]!;

/** What names a row of the form: a number would read as one of the sweep. */
const letterOf = (index: number) => String.fromCharCode(65 + index);

/** A range as it is written; one value as JSON has it, so that `3` is a number. */
function valueOf(range: string): unknown {
  try {
    return JSON.parse(range);
  } catch {
    return range;
  }
}

interface Varied {
  path: string;
  range: string;
}

export default function NewSweepPage() {
  const chains = useQuery({
    queryKey: ["chains", "names"],
    queryFn: () => dataOf(client.GET("/api/v1/chains", { params: { query: { limit: 200 } } })),
  });
  const schema = useQuery({
    queryKey: ["schema", "sweep"],
    queryFn: () => dataOf(client.GET("/api/v1/schema", { params: { query: { name: "sweep" } } })),
    staleTime: Infinity,
  });
  return (
    <Page title="New sweep">
      <Queried query={chains}>
        {({ chains: chainList }) =>
          chainList.length === 0 ? (
            <Empty title="No chain is stored yet">
              <p>
                A sweep trains a chain many times. Build one on <Link href="/chains">Chains</Link> first.
              </p>
            </Empty>
          ) : (
            <Queried query={schema}>{(form) => <SweepForm chains={chainList} schema={form as JsonSchema} />}</Queried>
          )
        }
      </Queried>
    </Page>
  );
}

function SweepForm({ chains, schema }: { chains: ChainList["chains"]; schema: JsonSchema }) {
  const [, navigate] = useLocation();
  const queries = useQueryClient();
  const [chain, setChain] = useState("");
  const [ranges, setRanges] = useState<Varied[]>([{ path: FIRST_PATH, range: FIRST_RANGE }]);
  const [options, setOptions] = useState<Record<string, unknown>>({});
  const start = useMutation({
    mutationFn: () => {
      const parameters = Object.fromEntries(ranges.map(({ path, range }) => [path, valueOf(range)]));
      return dataOf(client.POST("/api/v1/sweeps", { body: { chain, parameters, ...options } as never }));
    },
    onSuccess: async (startedSweep) => {
      await queries.invalidateQueries({ queryKey: ["sweeps"] });
      navigate(`/sweeps/${encodeURIComponent(startedSweep.name)}`);
    },
  });
  const change = (position: number, to: Partial<Varied>) =>
    setRanges(ranges.map((entry, index) => (index === position ? { ...entry, ...to } : entry)));
  const problems = start.error instanceof Problem ? start.error.errors : [];
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        start.mutate();
      }}
    >
      <Section title="What is trained">
        <div className="form-row">
          <div>
            <label htmlFor="sweep-chain">Chain</label>
            <select id="sweep-chain" required value={chain} onChange={(event) => setChain(event.target.value)}>
              <option value="">choose one</option>
              {chains.map((entry) => (
                <option key={entry.id} value={entry.id}>
                  {entry.name}
                </option>
              ))}
            </select>
          </div>
        </div>
      </Section>
      <Section
        title="Settings that vary"
        actions={
          <button type="button" onClick={() => setRanges([...ranges, { path: "", range: "" }])}>
            Add a setting
          </button>
        }
      >
        <p className="quiet">
          A range is <code>uniform(a, b)</code>, <code>loguniform(a, b)</code>, <code>int(a, b)</code>,{" "}
          <code>logint(a, b)</code> or <code>choice(a, b, …)</code>; one value is that of all trials.
        </p>
        <datalist id="sweep-paths">
          {Object.keys(SUGGESTED).map((path) => (
            <option key={path} value={path} />
          ))}
        </datalist>
        {ranges.map((entry, index) => (
          <div key={index} className="form-row">
            <div>
              <label htmlFor={`sweep-path-${index}`}>Setting {letterOf(index)}</label>
              <input
                id={`sweep-path-${index}`}
                list="sweep-paths"
                required
                value={entry.path}
                onChange={(event) => change(index, { path: event.target.value })}
              />
            </div>
            <div>
              <label htmlFor={`sweep-range-${index}`}>Range {letterOf(index)}</label>
              <input
                id={`sweep-range-${index}`}
                required
                placeholder={SUGGESTED[entry.path as keyof typeof SUGGESTED]}
                value={entry.range}
                onChange={(event) => change(index, { range: event.target.value })}
              />
            </div>
            {ranges.length > 1 && (
              <button type="button" onClick={() => setRanges(ranges.filter((_, position) => position !== index))}>
                Remove {letterOf(index)}
              </button>
            )}
          </div>
        ))}
      </Section>
      <Section title="Trials">
        <SchemaForm schema={schema} value={options} onChange={setOptions} problems={problems} only={FIRST} />
        <details>
          <summary>More settings</summary>
          <SchemaForm schema={schema} value={options} onChange={setOptions} problems={problems} only={REST} />
        </details>
      </Section>
      <div className="actions">
        <button className="primary" disabled={start.isPending} aria-busy={start.isPending}>
          Start the sweep
        </button>
      </div>
      {start.error && <ProblemNote error={start.error} />}
    </form>
  );
}
