// The questions and answers that documents give by rule, before anything is trained on them.

import { client, dataOf } from "../../api/client";
import { useCancelable } from "../../components/cancelable";
import { formatNumber, formatPercent } from "../../components/format";
import { Loading, ProblemNote } from "../../components/notes";
import { Facts, Table } from "../../components/table";

export interface GenerationPreview {
  documents: number;
  documents_with_pairs: number;
  documents_without_pairs: readonly string[];
  wanted_rows: number;
  wanted_pairs: number;
  found_pairs: number;
  trained_rows: number;
  enough: boolean;
  kinds: Readonly<Record<string, number>>;
  examples: readonly { question: string; wordings: readonly string[]; answer: string; kind: string; source: string }[];
  sentences: number;
  used_sentences: number;
  coverage: number;
  words_per_pair: number | null;
  last_resort_share: number;
  model_cost: { calls: number; prompt_tokens: number; reply_tokens: number; basis: string };
  advice: string;
}

export function GeneratedPairs({ found }: { found: GenerationPreview }) {
  const cost = found.model_cost;
  return (
    <>
      {found.advice && (
        <p className={found.enough ? undefined : "banner"} role="status">
          {found.advice}
        </p>
      )}
      <Facts
        facts={[
          ["Pairs", `${formatNumber(found.found_pairs)} of ${formatNumber(found.wanted_pairs)}`],
          ["Rows to train on", `${formatNumber(found.trained_rows)} of ${formatNumber(found.wanted_rows)}`],
          ["Documents with pairs", `${formatNumber(found.documents_with_pairs)} of ${formatNumber(found.documents)}`],
          [
            "Sentences in an answer",
            `${formatNumber(found.used_sentences)} of ${formatNumber(found.sentences)} (${formatPercent(found.coverage)})`,
          ],
          ["Words for each pair", formatNumber(found.words_per_pair)],
          ["Only ask what a page is about", formatPercent(found.last_resort_share)],
          [
            "With a model instead",
            `${formatNumber(cost.calls)} calls, ${formatNumber(cost.prompt_tokens)} tokens read, ` +
              `${formatNumber(cost.reply_tokens)} written`,
          ],
        ]}
      />
      <Table
        caption="Kinds of questions"
        rows={Object.entries(found.kinds)}
        rowKey={([kind]) => kind}
        columns={[
          { title: "Kind", cell: ([kind]) => kind.replaceAll("_", " ") },
          { title: "Pairs", numeric: true, cell: ([, count]) => formatNumber(count) },
        ]}
      />
      <Table
        cards
        caption="Examples of pairs"
        rows={found.examples}
        rowKey={(_, index) => index}
        columns={[
          { title: "Question", cell: (pair) => <span className="cell-text">{pair.question}</span> },
          { title: "Answer", cell: (pair) => <span className="cell-text">{pair.answer}</span> },
          { title: "Kind", cell: (pair) => pair.kind.replaceAll("_", " ") },
          { title: "Document", cell: (pair) => pair.source },
        ]}
      />
      {found.documents_without_pairs.length > 0 && (
        <details>
          <summary>Documents without a pair</summary>
          <ul>
            {found.documents_without_pairs.map((name) => (
              <li key={name}>{name}</li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

const EXAMPLES = 10;

/** A button that shows the pairs of documents before anything is started. */
export function PairsPreview({ path, count, wordings }: { path: unknown; count?: unknown; wordings?: unknown }) {
  const preview = useCancelable((given: Record<string, unknown>, signal) =>
    dataOf(client.GET("/api/v1/data/preview", { params: { query: given as never }, signal })),
  );
  const query = {
    path,
    generate: true,
    rows: EXAMPLES,
    ...(typeof count === "number" && { count }),
    ...(typeof wordings === "number" && { wordings }),
  };
  const generation = preview.data?.generation as GenerationPreview | null | undefined;
  return (
    <div className="pairs">
      <button
        type="button"
        disabled={typeof path !== "string" || path === "" || preview.isPending}
        aria-busy={preview.isPending}
        onClick={() => preview.mutate(query)}
      >
        Show pairs
      </button>
      {preview.isPending && <Loading what="Reading the documents" onCancel={preview.cancel} />}
      {preview.error && !preview.isPending && <ProblemNote error={preview.error} />}
      {generation && !preview.isPending && (
        <section aria-label="Pairs of the documents">
          <GeneratedPairs found={generation} />
        </section>
      )}
    </div>
  );
}
