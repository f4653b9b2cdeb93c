// Reasons of a refusal at the fields of a job: the server names nodes of the chain that a job becomes.

import type { ProblemReason } from "../../api/client";

const CONFIG = /^config\.?/;

/** The reason with the path of the field in the form of a job. */
export function problemOfJob(reason: ProblemReason): ProblemReason {
  const field = reason.field.replace(CONFIG, "");
  return { ...reason, field: isOfSource(reason) && !field.startsWith("dataset.") ? `dataset.${field}` : field };
}

const isOfSource = ({ node }: ProblemReason) => /^data[-_]source/.test(node ?? "");
