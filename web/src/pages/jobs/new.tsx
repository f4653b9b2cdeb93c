// Start a training on a data set: a form from the schema, a preview of the data, an estimate before the start.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState, type Dispatch, type SetStateAction } from "react";
import { useLocation, useSearchParams } from "wouter";
import { client, dataOf, Problem, type ProblemReason } from "../../api/client";
import type { JobSpec } from "../../api/schema";
import { useChoices } from "../../components/choices";
import { ColumnMap } from "../../components/columns";
import { SchemaForm } from "../../components/form";
import { GroupField } from "../../components/group";
import { ProblemNote } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { QuestionNote, questionsOf, useQuestion } from "../../components/question";
import { hasField, pathWith, type JsonSchema } from "../../components/schema";
import { Upload } from "../../components/upload";
import { defaultsOf, expand } from "../chains/editor/server";
import { DataPreview } from "./preview";
import { Estimate, usePlan } from "./estimate";
import { problemOfJob } from "./problems";
import "./jobs.css";

const DRAFT = "trainyard.new-job";
const FIRST = ["name", "dataset", "base_model", "stage", "method", "hyperparameters", "backend"];

type Values = Record<string, unknown>;

/** The filled-in form, kept for a reload of the page until the job is started. */
function useDraft(): [Values, Dispatch<SetStateAction<Values>>] {
  const [search] = useSearchParams();
  const [draft, setDraft] = useState<Values>(() => {
    const savedDraft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}");
    const path = search.get("path"); // of who comes from the overview
    return path ? { ...savedDraft, dataset: { path } } : savedDraft;
  });
  useEffect(() => sessionStorage.setItem(DRAFT, JSON.stringify(draft)), [draft]);
  return [draft, setDraft];
}

const ASK_AFTER_MS = 300;

const withoutUndefined = (values: Values): Values =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** Defaults of the job's fields: they depend on its stage, its method and this machine. */
function useDefaults(draft: Values): Values {
  const [settledDraft, setSettledDraft] = useState(draft);
  useEffect(() => {
    const handle = window.setTimeout(() => setSettledDraft(draft), ASK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [draft]);
  const [latest, setLatest] = useState<Values>({});
  const { data } = useQuery({
    queryKey: ["defaults", settledDraft],
    // They do not depend on the data set, which may not be named yet.
    queryFn: ({ signal }) => expand({ target: { ...settledDraft, dataset: { path: "data" } } }, signal),
    retry: false,
  });
  const defaults = defaultsOf(data, "trainer");
  // While something is wrong there are none: the earlier ones stay.
  if (Object.keys(defaults).length > 0 && defaults !== latest) setLatest(defaults);
  return latest;
}

export default function NewJobPage() {
  const schema = useQuery({
    queryKey: ["schema", "job"],
    queryFn: () => dataOf(client.GET("/api/v1/schema", { params: { query: { name: "job" } } })),
    staleTime: Infinity,
  });
  return (
    <Page title="New job">
      <Queried query={schema}>{(data) => <JobForm schema={data as JsonSchema} />}</Queried>
    </Page>
  );
}

function JobForm({ schema }: { schema: JsonSchema }) {
  const [draft, setDraft] = useDraft();
  const [search] = useSearchParams();
  const [group, setGroup] = useState(search.get("group") ?? "");
  const [, navigate] = useLocation();
  const queries = useQueryClient();
  const start = useMutation({
    mutationFn: ({ spec, yes }: { spec: Values; yes: boolean }) =>
      dataOf(
        client.POST("/api/v1/jobs", {
          params: { query: { ...(group && { group }), ...(yes && { yes }) } },
          body: spec as unknown as JobSpec,
        }),
      ),
    onSuccess: async (startedJob) => {
      sessionStorage.removeItem(DRAFT);
      await queries.invalidateQueries({ queryKey: ["jobs"] });
      navigate(`/jobs/${startedJob.id}`);
    },
  });
  const question = useQuestion(start.variables?.spec === draft ? questionsOf(start.error) : []);
  const plan = usePlan();
  const refusal = (questionsOf(start.error).length > 0 ? null : start.error) ?? plan.error;
  const problems = [
    ...(refusal instanceof Problem ? refusal.errors : []),
    ...((plan.data?.refusals ?? []) as unknown as ProblemReason[]),
  ].map(problemOfJob);
  const distinct = new Map(problems.map((problem) => [`${problem.field} ${problem.because}`, problem])); // of the start and the estimate
  const paths = { rows: pathWith("rows", schema), columns: pathWith("columns", schema) };
  const fieldOf = (reason: ProblemReason) => {
    const { field } = problemOfJob(reason);
    const isShown = !field.startsWith(paths.columns) && hasField(schema, schema, field.split("."));
    return isShown ? field : "";
  };
  const defaults = useDefaults(draft);
  const dataset = (draft.dataset ?? {}) as Values;
  const { choices, start: folder } = useChoices({ [paths.rows]: dataset.path }, [pathWith("model", schema)]);
  const hints = Object.fromEntries(folder ? [[paths.rows, `A relative path starts in \`${folder}\`.`]] : []);
  // An upload may end after other fields were written.
  const setDataset = (change: Values) =>
    setDraft((previous) => ({
      ...previous,
      dataset: withoutUndefined({ ...(previous.dataset as Values), ...change }),
    }));
  const extras = {
    [paths.rows]: <Upload onUploaded={(path) => setDataset({ path, columns: undefined })} />,
  };
  const controls = {
    [paths.columns]: (
      <ColumnMap
        key="columns"
        path={dataset.path}
        value={dataset.columns}
        onChange={(columns) => setDataset({ columns })}
      />
    ),
  };
  const form = { schema, value: draft, onChange: setDraft, problems: [...distinct.values()] };
  const commonProps = { ...form, defaults, choices, hints, extras, controls };
  const furtherFields = Object.keys(schema.properties ?? {}).filter((name) => !FIRST.includes(name));
  return (
    <form
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        start.mutate({ spec: draft, yes: question.yes });
      }}
    >
      <Section title="Training">
        <SchemaForm {...commonProps} only={FIRST} />
        <details open={problems.some((problem) => furtherFields.includes(problem.field.split(".")[0]!)) || undefined}>
          <summary>More settings</summary>
          <SchemaForm {...commonProps} only={furtherFields} />
        </details>
      </Section>
      <DataPreview draft={draft} />
      <Estimate draft={draft} plan={plan} fieldOf={fieldOf} />
      <GroupField value={group} onChange={setGroup} />
      <QuestionNote question={question} />
      <div className="actions">
        <button className="primary" disabled={start.isPending || question.isOpen} aria-busy={start.isPending}>
          Start the job
        </button>
        <button type="button" onClick={() => setDraft({})}>
          Clear
        </button>
      </div>
      {start.error && questionsOf(start.error).length === 0 && <ProblemNote error={start.error} fieldOf={fieldOf} />}
    </form>
  );
}
