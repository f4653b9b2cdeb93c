// Reasons of a refusal at the fields of a job: the server names nodes of the chain that a job becomes.

import type { ProblemReason } from "../../api/client";

const CONFIG = /^config\.?/;

export const problemsOfJob = (reasons: readonly ProblemReason[]): ProblemReason[] =>
  reasons.map((one) => {
    const field = one.field.replace(CONFIG, "");
    return { ...one, field: one.node?.startsWith("data_source") ? `dataset.${field}` : field };
  });
