// An evaluator's verdict on an adapter, in two words.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { EvaluationList } from "../../api/schema";
import "../../styles/records.css";

const NEWEST = 50;

/** The newest evaluations of all runs. */
export const useNewestEvaluations = () =>
  useQuery({
    queryKey: ["evaluations", "newest"],
    queryFn: () => dataOf(client.GET("/api/v1/evaluations", { params: { query: { limit: NEWEST } } })),
    refetchInterval: 15_000,
  });

interface VersionFacts {
  sha256?: unknown;
  evaluated?: unknown;
}

/** The verdict about a version of an adapter; whether there was one, where its run is not among the newest. */
export function VerdictOf({
  version,
  evaluations,
}: {
  version: VersionFacts;
  evaluations: EvaluationList["evaluations"];
}) {
  const digest = String(version.sha256 ?? "");
  const match = evaluations.find((evaluation) => digest && evaluation.adapter_sha256.startsWith(digest));
  if (match) return <Verdict better={match.better} cautions={match.cautions} fewRows={match.few_rows} />;
  return <>{version.evaluated ? "evaluated" : "not evaluated"}</>;
}

interface VerdictProps {
  better?: boolean | null;
  cautions?: readonly string[];
  /** Why there are not enough rows for a verdict. */
  fewRows?: readonly string[];
  /** What it was compared with. */
  baseline?: string;
}

export function Verdict({ better, cautions = [], fewRows = [], baseline = "" }: VerdictProps) {
  if (better == null) return <span className="quiet">removed</span>;
  if (!better && fewRows.length > 0) {
    return (
      <span className="verdict quiet" title={fewRows.join(" ")}>
        <span aria-hidden="true">○</span> not enough rows to say
      </span>
    );
  }
  return (
    <span className={`verdict verdict-${better ? "good" : "bad"}`}>
      <span aria-hidden="true">{better ? "▲" : "▼"}</span> {better ? "better" : "not better"}
      {baseline && ` than ${baseline}`}
      {better && cautions.length > 0 && ", on few rows"}
    </span>
  );
}
