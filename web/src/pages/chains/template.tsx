// A template: its parameters as a form, the chain that they give, and what is wrong with it; to run, or to edit further.

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
import { Page, Queried, Section } from "../../components/page";
import { resolveSchema, type JsonSchema } from "../../components/schema";
import { Upload } from "../../components/upload";
import { PairsPreview } from "../jobs/pairs";
import { expand, parameterDefaults, reasonsOf, type CheckReason } from "./editor/server";
import { CheckNotes, Reasons } from "./reasons";

type Values = Record<string, unknown>;

const CHECK_AFTER_MS = 300;
const PREFIX = "parameters";

/** Whether a reason is only that a needed parameter is still empty: the form marks it, and it is no mistake. */
const isEmpty = (one: CheckReason, schema: JsonSchema) =>
  one.code === "E-SPEC-MISSING" && (schema.required ?? []).some((name) => one.field === `${PREFIX}.${name}`);

/** The path of every parameter, those of groups too. */
function pathsOf(schema: JsonSchema, root: JsonSchema, path: string): string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, one]) => {
    const found = resolveSchema(one, root);
    return found.properties ? pathsOf(found, root, `${path}.${name}`) : [`${path}.${name}`];
  });
}

export default function TemplatePage({ template }: { template: string }) {
  const schema = useQuery({
    queryKey: ["schema", template],
    queryFn: () => dataOf(client.GET("/api/v1/schema", { params: { query: { name: template } } })),
    staleTime: Infinity,
  });
  return (
    <Page title={`Template ${template}`}>
      <Queried query={schema}>{(found) => <TemplateForm template={template} schema={found as JsonSchema} />}</Queried>
    </Page>
  );
}

function TemplateForm({ template, schema }: { template: string; schema: JsonSchema }) {
  const { allows } = useLogin();
  const [, navigate] = useLocation();
  const [search] = useSearchParams();
  const [parameters, setParameters] = useState<Values>(() => JSON.parse(search.get("parameters") ?? "{}"));
  const [group, setGroup] = useState("");
  const [settled, setSettled] = useState(parameters);
  useEffect(() => {
    const handle = window.setTimeout(() => setSettled(parameters), CHECK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [parameters]);
  const expanded = useQuery({
    queryKey: ["expand", template, settled],
    queryFn: ({ signal }) => expand({ target: template, parameters: settled }, signal),
    placeholderData: keepPreviousData,
  });
  const start = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/runs", { body: { target: template, parameters, group } as never })),
    onSuccess: (run) => navigate(`/jobs/${(run as { id: string }).id}`),
  });
  const names = Object.keys(schema.properties ?? {});
  const folders = names.filter((name) => /a relative path starts/i.test(schema.properties![name]!.description ?? ""));
  const { choices, start: folder } = useChoices(
    Object.fromEntries(folders.map((name) => [`${PREFIX}.${name}`, parameters[name]])),
    names.filter((name) => name === "base_model").map((name) => `${PREFIX}.${name}`),
  );
  const hints = Object.fromEntries(
    folder ? folders.map((name) => [`${PREFIX}.${name}`, `Here that is \`${folder}\`.`]) : [],
  );
  const set = (change: Values) =>
    setParameters((before) =>
      Object.fromEntries(Object.entries({ ...before, ...change }).filter(([, value]) => value !== undefined)),
    );
  const extras = Object.fromEntries(
    folders.map((name) => [
      `${PREFIX}.${name}`,
      <PathExtras key={name} name={name} parameters={parameters} columns={columnsOf(name, names)} set={set} />,
    ]),
  );
  const controls = Object.fromEntries(
    folders.flatMap((name) => {
      const columns = columnsOf(name, names);
      if (!columns) return [];
      const map = (
        <ColumnMap
          key={columns}
          title={schema.properties![columns]!.title}
          path={parameters[name]}
          value={parameters[columns]}
          onChange={(value) => set({ [columns]: value })}
        />
      );
      return [[`${PREFIX}.${columns}`, map]];
    }),
  );
  const reasons = reasonsOf(expanded.data);
  const empty = reasons.filter((one) => isEmpty(one, schema)).map((one) => one.field.slice(PREFIX.length + 1));
  const wrong = reasons.filter((one) => !isEmpty(one, schema));
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
          defaults={parameterDefaults(expanded.data, pathsOf(schema, schema, PREFIX))}
        />
      </Section>
      <Section
        title="Chain"
        actions={
          <>
            <button type="button" onClick={() => navigate(edit)} disabled={!expanded.data?.nodes.length}>
              Open in the editor
            </button>
            {allows("run") && (
              <ActionButton mutation={start} variables={undefined} disabled={!expanded.data?.check.ok}>
                Run {template}
              </ActionButton>
            )}
          </>
        }
      >
        <GroupField value={group} onChange={setGroup} />
        <Queried query={expanded}>
          {(found) => <Preview template={template} found={found} wrong={wrong} empty={empty} />}
        </Queried>
      </Section>
    </div>
  );
}

/** The parameter that maps the columns of a data set, where the template has one. */
const columnsOf = (name: string, names: readonly string[]): string | undefined =>
  names.find((one) => one === `${name}_columns`);

/** What a field of a path has below it: an upload, and for documents the pairs that they give. */
function PathExtras(props: {
  name: string;
  parameters: Values;
  columns: string | undefined;
  set: (change: Values) => void;
}) {
  const { name, parameters, columns, set } = props;
  return (
    <>
      <Upload
        documents={!columns}
        what={
          columns ? `a file of ${name === "preference" ? "preferences" : name === "sft" ? "examples" : name}` : name
        }
        onUploaded={(path) => set({ [name]: path, ...(columns && { [columns]: undefined }) })}
      />
      {name === "documents" && (
        <PairsPreview path={parameters.documents} count={parameters.count} wordings={parameters.wordings} />
      )}
    </>
  );
}

interface PreviewProps {
  template: string;
  found: ExpandedChain;
  wrong: readonly CheckReason[];
  empty: readonly string[];
}

function statusOf({ found, wrong, empty }: PreviewProps) {
  if (found.check.ok) return "✓ would run here";
  if (wrong.length > 0 || empty.length === 0) return "These are in the way of a run:";
  return `The chain is drawn here when its parameters are given: ${empty.map(labelOf).join(", ")}.`;
}

function Preview(props: PreviewProps) {
  const { template, found, wrong } = props;
  const listed = (found.spec.nodes ?? []) as { id: string; needs: string[] }[];
  const needs = new Map(listed.map((one) => [one.id, one.needs]));
  const nodes: GraphNode[] = found.nodes.map((one) => ({ ...one, needs: needs.get(one.id) ?? [] }));
  return (
    <>
      <p role="status" className={found.check.ok ? "state-completed" : undefined}>
        {statusOf(props)}
      </p>
      <Reasons reasons={wrong} />
      <CheckNotes notes={found.check.notes} />
      {nodes.length > 0 && <ChainGraph nodes={nodes} label={`Nodes of ${template}`} />}
    </>
  );
}
