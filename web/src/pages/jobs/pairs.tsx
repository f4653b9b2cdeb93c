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

export function GeneratedPairs({ generation }: { generation: GenerationPreview }) {
  const cost = generation.model_cost;
  return (
    <>
      {generation.advice && (
        <p className={generation.enough ? undefined : "banner"} role="status">
          {generation.advice}
        </p>
      )}
      <Facts
        facts={[
          ["Pairs", `${formatNumber(generation.found_pairs)} of ${formatNumber(generation.wanted_pairs)}`],
          ["Rows to train on", `${formatNumber(generation.trained_rows)} of ${formatNumber(generation.wanted_rows)}`],
          [
            "Documents with pairs",
            `${formatNumber(generation.documents_with_pairs)} of ${formatNumber(generation.documents)}`,
          ],
          [
            "Sentences in an answer",
            `${formatNumber(generation.used_sentences)} of ${formatNumber(generation.sentences)} (${formatPercent(generation.coverage)})`,
          ],
          ["Words for each pair", formatNumber(generation.words_per_pair)],
          ["Only ask what a page is about", formatPercent(generation.last_resort_share)],
          [
            "With a model instead",
            `${formatNumber(cost.calls)} calls, ${formatNumber(cost.prompt_tokens)} tokens read, ` +
              `${formatNumber(cost.reply_tokens)} written`,
          ],
        ]}
      />
      <Table
        caption="Kinds of questions"
        rows={Object.entries(generation.kinds)}
        rowKey={([kind]) => kind}
        columns={[
          { title: "Kind", cell: ([kind]) => kind.replaceAll("_", " ") },
          { title: "Pairs", numeric: true, cell: ([, count]) => formatNumber(count) },
        ]}
      />
      <Table
        cards
        caption="Examples of pairs"
        rows={generation.examples}
        rowKey={(_, index) => index}
        columns={[
          { title: "Question", cell: (pair) => <span className="cell-text">{pair.question}</span> },
          { title: "Answer", cell: (pair) => <span className="cell-text">{pair.answer}</span> },
          { title: "Kind", cell: (pair) => pair.kind.replaceAll("_", " ") },
          { title: "Document", cell: (pair) => pair.source },
        ]}
      />
      {generation.documents_without_pairs.length > 0 && (
        <details>
          <summary>Documents without a pair</summary>
          <ul>
            {generation.documents_without_pairs.map((name) => (
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
  const preview = useCancelable((settings: Record<string, unknown>, signal) =>
    dataOf(client.GET("/api/v1/data/preview", { params: { query: settings as never }, signal })),
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
      {preview.isPending && <Loading label="Reading the documents" onCancel={preview.cancel} />}
      {preview.error && !preview.isPending && <ProblemNote error={preview.error} />}
      {generation && !preview.isPending && (
        <section aria-label="Pairs of the documents">
          <GeneratedPairs generation={generation} />
        </section>
      )}
    </div>
  );
}
