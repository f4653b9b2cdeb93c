// A template: its parameters as a form, the resulting chain, and its problems; to run, or to edit further.

import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useLocation, useSearchParams } from "wouter";
import { client, dataOf, type ProblemReason } from "../../api/client";
import { useLogin } from "../../api/login";
import type { ExpandedChain } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useChoices } from "../../components/choices";
import { ColumnMap } from "../../components/columns";
import { SchemaForm } from "../../components/form";
import { GroupField } from "../../components/group";
import { labelOf } from "../../components/format";
import { ChainGraph, type GraphNode } from "../../components/graph";
import { ReasonList, type FieldOf } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { QuestionNote, questionsOf, useQuestion, type Question } from "../../components/question";
import { hasField, listFields, type JsonSchema } from "../../components/schema";
import { Upload } from "../../components/upload";
import { PairsPreview } from "../jobs/pairs";
import { expand, parameterDefaults, reasonsOf, type CheckReason } from "./editor/server";
import { CheckNotes } from "./reasons";

type Values = Record<string, unknown>;

const CHECK_AFTER_MS = 300;
const PREFIX = "parameters";

/** Whether a reason is only that a needed parameter is still empty: the form marks it, and it is no mistake. */
const isEmpty = (reason: CheckReason, schema: JsonSchema) =>
  reason.code === "E-SPEC-MISSING" && (schema.required ?? []).some((name) => reason.field === `${PREFIX}.${name}`);

export default function TemplatePage({ template }: { template: string }) {
  const schema = useQuery({
    queryKey: ["schema", template],
    queryFn: () => dataOf(client.GET("/api/v1/schema", { params: { query: { name: template } } })),
    staleTime: Infinity,
  });
  return (
    <Page title={`Template ${template}`}>
      <Queried query={schema}>{(data) => <TemplateForm template={template} schema={data as JsonSchema} />}</Queried>
    </Page>
  );
}

function TemplateForm({ template, schema }: { template: string; schema: JsonSchema }) {
  const { allows } = useLogin();
  const [, navigate] = useLocation();
  const [search] = useSearchParams();
  const [parameters, setParameters] = useState<Values>(() => JSON.parse(search.get("parameters") ?? "{}"));
  const [group, setGroup] = useState("");
  const [settledParameters, setSettledParameters] = useState(parameters);
  useEffect(() => {
    const handle = window.setTimeout(() => setSettledParameters(parameters), CHECK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [parameters]);
  const expansion = useQuery({
    queryKey: ["expand", template, settledParameters],
    queryFn: ({ signal }) => expand({ target: template, parameters: settledParameters }, signal),
    placeholderData: keepPreviousData,
  });
  const start = useMutation({
    mutationFn: ({ parameters, yes }: { parameters: Values; yes: boolean }) =>
      dataOf(client.POST("/api/v1/runs", { body: { target: template, parameters, group, yes } as never })),
    onSuccess: (run) => navigate(`/jobs/${(run as { id: string }).id}`),
  });
  const questions = (expansion.data?.check.questions ?? []) as unknown as ProblemReason[];
  const startQuestions = start.variables?.parameters === parameters ? questionsOf(start.error) : [];
  const question = useQuestion(questions.length > 0 ? questions : startQuestions);
  const fields = listFields(schema, schema, "");
  const namesOf = (...widgets: string[]) =>
    fields.filter(([, field]) => widgets.includes(field.widget ?? "")).map(([path]) => path);
  const folders = namesOf("documents", "rows", "repository");
  const [columns] = namesOf("columns");
  const { choices, start: folder } = useChoices(
    Object.fromEntries(folders.map((name) => [`${PREFIX}.${name}`, parameters[name]])),
    namesOf("model").map((name) => `${PREFIX}.${name}`),
  );
  const hints = Object.fromEntries(
    folder ? folders.map((name) => [`${PREFIX}.${name}`, `Here that is \`${folder}\`.`]) : [],
  );
  const set = (change: Values) =>
    setParameters((previous) =>
      Object.fromEntries(Object.entries({ ...previous, ...change }).filter(([, value]) => value !== undefined)),
    );
  const extras = Object.fromEntries(
    fields
      .filter(([path]) => folders.includes(path))
      .map(([path, field]) => [
        `${PREFIX}.${path}`,
        <Upload
          key={path}
          documents={field.widget !== "rows"}
          label={field.title?.toLowerCase()}
          onUploaded={(filePath) => set({ [path]: filePath })}
        />,
      ]),
  );
  const controls =
    columns !== undefined
      ? {
          [`${PREFIX}.${columns}`]: (
            <TemplateColumns key="columns" schema={schema} folders={folders} parameters={parameters} set={set} />
          ),
        }
      : undefined;
  const reasons = reasonsOf(expansion.data);
  const empty = reasons
    .filter((reason) => isEmpty(reason, schema))
    .map((reason) => reason.field.slice(PREFIX.length + 1));
  const wrong = reasons.filter((reason) => !isEmpty(reason, schema));
  const fieldOf = ({ field }: ProblemReason) => {
    const [first, ...path] = field.split(".");
    return first === PREFIX && path[0] !== columns && hasField(schema, schema, path) ? path.join(".") : "";
  };
  const edit = `/chains/new?template=${template}&parameters=${encodeURIComponent(JSON.stringify(parameters))}`;
  return (
    <div className="stack">
      <Section title="Parameters">
        <SchemaForm
          schema={schema}
          value={parameters}
          onChange={setParameters}
          problems={wrong as unknown as ProblemReason[]}
          prefix={PREFIX}
          choices={choices}
          hints={hints}
          extras={extras}
          controls={controls}
          defaults={parameterDefaults(
            expansion.data,
            fields.map(([path]) => `${PREFIX}.${path}`),
          )}
        />
        <GroupField value={group} onChange={setGroup} />
      </Section>
      {namesOf("documents").includes("documents") && (
        <Section title="Pairs of the documents">
          <p className="quiet">
            {parameters.model
              ? "What rules find; the model that is named writes its own."
              : "Questions and answers that rules find in the documents, before anything is started."}
          </p>
          <PairsPreview path={parameters.documents} count={parameters.count} wordings={parameters.wordings} />
        </Section>
      )}
      <Section
        title="Chain"
        actions={
          <>
            <button type="button" onClick={() => navigate(edit)} disabled={!expansion.data?.nodes.length}>
              Open in the editor
            </button>
            {allows("run") && (
              <ActionButton
                mutation={start}
                variables={{ parameters, yes: question.yes }}
                disabled={!expansion.data?.check.ok}
                question={question}
              >
                Run {template}
              </ActionButton>
            )}
          </>
        }
      >
        <Queried query={expansion}>
          {(data) => (
            <Preview
              template={template}
              expandedChain={data}
              wrong={wrong}
              empty={empty}
              question={question}
              fieldOf={fieldOf}
              isChecked={settledParameters === parameters && !expansion.isPlaceholderData}
            />
          )}
        </Queried>
      </Section>
    </div>
  );
}

/** The parameters with other columns of a data set: by its name where the template has several. */
function withColumns(parameters: Values, folders: readonly string[], name: string, columns: unknown): Values {
  if (folders.length === 1) return { columns };
  const columnMap = { ...(parameters.columns as Values), [name]: columns };
  const definedColumns = Object.fromEntries(Object.entries(columnMap).filter(([, value]) => value !== undefined));
  return { columns: Object.keys(definedColumns).length > 0 ? definedColumns : undefined };
}

interface ColumnsProps {
  schema: JsonSchema;
  folders: readonly string[];
  parameters: Values;
  set: (change: Values) => void;
}

/** The columns of each data set of a template. */
function TemplateColumns({ schema, folders, parameters, set }: ColumnsProps) {
  return folders.map((name) => (
    <ColumnMap
      key={name}
      title={
        folders.length > 1 ? `Columns of ${String(schema.properties![name]!.title ?? name).toLowerCase()}` : "Columns"
      }
      path={parameters[name]}
      value={folders.length > 1 ? (parameters.columns as Values | undefined)?.[name] : parameters.columns}
      onChange={(columns) => set(withColumns(parameters, folders, name, columns))}
    />
  ));
}

interface PreviewProps {
  template: string;
  expandedChain: ExpandedChain;
  wrong: readonly CheckReason[];
  empty: readonly string[];
  question: Question;
  fieldOf: FieldOf;
  /** Whether the reasons belong to the current parameters. */
  isChecked: boolean;
}

function statusOf({ expandedChain, wrong, empty, question, isChecked }: PreviewProps) {
  if (!isChecked) return "checking …";
  if (expandedChain.check.ok && question.isOpen) return "○ would run here, if you allow it";
  if (expandedChain.check.ok) return "✓ would run here";
  if (wrong.length > 0 || empty.length === 0) return "These are in the way of a run:";
  return `The chain is drawn here when its parameters are given: ${empty.map(labelOf).join(", ")}.`;
}

function Preview(props: PreviewProps) {
  const { template, expandedChain, wrong, question, fieldOf, isChecked } = props;
  const chainNodes = (expandedChain.spec.nodes ?? []) as { id: string; needs: string[] }[];
  const needs = new Map(chainNodes.map((node) => [node.id, node.needs]));
  const nodes: GraphNode[] = expandedChain.nodes.map((node) => ({ ...node, needs: needs.get(node.id) ?? [] }));
  return (
    <>
      <p
        role="status"
        className={expandedChain.check.ok && isChecked && !question.isOpen ? "state-completed" : undefined}
      >
        {statusOf(props)}
      </p>
      {wrong.length > 0 && <ReasonList reasons={wrong as unknown as ProblemReason[]} fieldOf={fieldOf} />}
      <QuestionNote question={question} fieldOf={fieldOf} />
      <CheckNotes notes={expandedChain.check.notes} />
      {nodes.length > 0 && <ChainGraph nodes={nodes} label={`Nodes of ${template}`} />}
    </>
  );
}
