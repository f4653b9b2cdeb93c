// A data set as the training would see it: its rows through the chat template, learned tokens, lengths, problems.

import { client, dataOf } from "../../api/client";
import type { DataPreview as Preview } from "../../api/schema";
import { useCancelable } from "../../components/cancelable";
import { formatDuration, formatNumber, formatPercent } from "../../components/format";
import { Loading, ProblemNote } from "../../components/notes";
import { Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { GeneratedPairs, type GenerationPreview } from "./pairs";

const SHOWN_ROWS = 5;

type Values = Record<string, unknown>;

/** The fields of a draft that decide how its data is read. */
function queryOf(draft: Values): Values | null {
  const dataset = (draft.dataset ?? {}) as Values;
  if (typeof dataset.path !== "string") return null;
  const settings = (draft.hyperparameters ?? {}) as Values;
  return {
    path: dataset.path,
    rows: SHOWN_ROWS,
    ...(typeof dataset.format === "string" && dataset.format !== "auto" ? { format: dataset.format } : {}),
    ...(dataset.columns ? { columns: dataset.columns } : {}),
    ...(typeof draft.base_model === "string" ? { base_model: draft.base_model } : {}),
    ...(typeof settings.max_length === "number" ? { max_length: settings.max_length } : {}),
  };
}

export function DataPreview({ draft, title = "Data" }: { draft: Values; title?: string }) {
  const query = queryOf(draft);
  const preview = useCancelable((settings: Values, signal) =>
    dataOf(client.GET("/api/v1/data/preview", { params: { query: settings as never }, signal })),
  );
  return (
    <Section
      title={title}
      actions={
        <button
          type="button"
          disabled={!query || preview.isPending}
          aria-busy={preview.isPending}
          onClick={() => query && preview.mutate(query)}
        >
          Preview the data
        </button>
      }
    >
      {preview.isPending ? (
        <Loading label="Reading and rendering the rows" onCancel={preview.cancel} />
      ) : preview.error ? (
        <ProblemNote error={preview.error} />
      ) : preview.data ? (
        <Shown preview={preview.data} />
      ) : (
        <p className="quiet">
          {query ? "Rows, token counts and problems before anything starts." : "Name a data set first."}
        </p>
      )}
    </Section>
  );
}

const TURNS: Record<string, string> = {
  empty_turns: "turns of the assistant that say nothing: not learned",
  unlearned_turns: "turns of the assistant without a border: not learned",
};

/** What a count of hidden parts, or of turns, is about. */
function hiddenText(part: string): string {
  return TURNS[part] ?? `${part.replaceAll("_", " ")}: not shown by the chat template`;
}

function Shown({ preview }: { preview: Preview }) {
  const { raw, lengths } = preview;
  const problems: [string, number][] = [
    ...Object.entries(preview.hidden ?? {}).map(([part, count]): [string, number] => [hiddenText(part), count]),
    ...Object.entries(raw.ignored_keys).map(([key, count]): [string, number] => [`ignored key ${key}`, count]),
  ];
  const later = preview as Preview & { generation?: GenerationPreview | null; refusal?: string };
  return (
    <>
      {later.refusal && (
        <p className="banner" role="alert">
          {later.refusal}
        </p>
      )}
      {later.generation && <GeneratedPairs generation={later.generation} />}
      <Facts
        facts={[
          ["Format", [raw.format, ...(raw.notes ?? [])].join("; ")],
          ["Rows read", `${preview.looked_at}${preview.complete ? ", all" : ""}`],
          ["Rows", formatNumber(preview.estimated_rows)],
          ["Tokens", formatNumber(preview.estimated_tokens)],
          ["Tokens of a row, mean", formatNumber(lengths.mean)],
          ["Tokens of a row, longest", formatNumber(lengths.longest)],
          ["Learned", formatPercent(lengths.learned_share)],
          ["Cut", formatNumber(lengths.truncated)],
          ["Duplicates", formatNumber(lengths.duplicates)],
          ["Model", preview.model],
          ["Template", preview.template],
          ["Time with default settings", formatDuration(preview.seconds)],
        ]}
      />
      {Object.keys(preview.dropped).length > 0 && (
        <Table
          caption="Rows that are left out"
          rows={Object.entries(preview.dropped)}
          rowKey={([reason]) => reason}
          columns={[
            { title: "Left out because", cell: ([reason]) => reason },
            { title: "Rows", numeric: true, cell: ([, count]) => formatNumber(count) },
          ]}
        />
      )}
      {problems.length > 0 && (
        <Table
          caption="What the model does not read or learn"
          rows={problems}
          rowKey={([name]) => name}
          columns={[
            { title: "Part", cell: ([name]) => name },
            { title: "Rows", numeric: true, cell: ([, count]) => formatNumber(count) },
          ]}
        />
      )}
      {preview.unreadable.length > 0 && (
        <Table
          caption="The first unreadable rows"
          rows={preview.unreadable}
          rowKey={(row) => row.source}
          columns={[
            { title: "Row", cell: (row) => row.source },
            { title: "Reason", cell: (row) => `${row.reason}: ${row.detail}` },
            { title: "Text", cell: (row) => <code>{row.text}</code> },
          ]}
        />
      )}
      <Table
        caption="Lengths of the rows in tokens"
        rows={lengths.histogram.slice(
          Math.max(
            0,
            lengths.histogram.findIndex((bin) => bin.rows > 0),
          ),
        )}
        rowKey={(bin) => bin.longest}
        columns={[
          { title: "Up to tokens", numeric: true, cell: (bin) => formatNumber(bin.longest) },
          { title: "Rows", numeric: true, cell: (bin) => formatNumber(bin.rows) },
          {
            title: "Share",
            cell: (bin) => <progress value={bin.rows} max={preview.looked_at} aria-label={`${bin.rows} rows`} />,
          },
        ]}
      />
      <h3>As the model reads it; underlined is learned</h3>
      {preview.rendered.map((row, index) => (
        <div key={index}>
          <p className="quiet">
            {row.source} {row.side} {row.tokens} tokens, {row.learned_tokens} learned
          </p>
          <p className="sample" tabIndex={0} role="group" aria-label={`Row ${index + 1}`}>
            {row.parts.map((part, position) => (
              <span key={position} className={part.learned ? "learned" : undefined}>
                {part.text}
              </span>
            ))}
          </p>
        </div>
      ))}
    </>
  );
}
