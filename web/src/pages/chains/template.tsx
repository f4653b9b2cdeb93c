// A template: its parameters as a form, the chain that they give, and what is wrong with it; to run, or to edit further.

import { keepPreviousData, useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useLocation } from "wouter";
import { client, dataOf, type ProblemReason } from "../../api/client";
import { useLogin } from "../../api/login";
import type { ExpandedChain } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { SchemaForm } from "../../components/form";
import { ChainGraph, type GraphNode } from "../../components/graph";
import { Page, Queried, Section } from "../../components/page";
import type { JsonSchema } from "../../components/schema";
import { expand, reasonsOf } from "./editor/server";
import { Reasons } from "./reasons";

type Values = Record<string, unknown>;

const CHECK_AFTER_MS = 300;

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
  const [parameters, setParameters] = useState<Values>({});
  const [settled, setSettled] = useState(parameters);
  useEffect(() => {
    const handle = window.setTimeout(() => setSettled(parameters), CHECK_AFTER_MS);
    return () => window.clearTimeout(handle);
  }, [parameters]);
  const expanded = useQuery({
    queryKey: ["expand", template, settled],
    queryFn: () => expand({ target: template, parameters: settled }),
    placeholderData: keepPreviousData,
  });
  const start = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/runs", { body: { target: template, parameters } as never })),
    onSuccess: (run) => navigate(`/jobs/${(run as { id: string }).id}`),
  });
  const edit = `/chains/new?template=${template}&parameters=${encodeURIComponent(JSON.stringify(parameters))}`;
  return (
    <div className="stack">
      <Section title="Parameters">
        <SchemaForm
          schema={schema}
          value={parameters}
          onChange={setParameters}
          problems={reasonsOf(expanded.data) as unknown as ProblemReason[]}
          prefix="parameters"
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
        <Queried query={expanded}>{(found) => <Preview template={template} found={found} />}</Queried>
      </Section>
    </div>
  );
}

function Preview({ template, found }: { template: string; found: ExpandedChain }) {
  const listed = (found.spec.nodes ?? []) as { id: string; needs: string[] }[];
  const needs = new Map(listed.map((one) => [one.id, one.needs]));
  const nodes: GraphNode[] = found.nodes.map((one) => ({ ...one, needs: needs.get(one.id) ?? [] }));
  return (
    <>
      <p role="status" className={found.check.ok ? "state-completed" : undefined}>
        {found.check.ok ? "✓ would run here" : "These are in the way of a run:"}
      </p>
      <Reasons reasons={reasonsOf(found)} />
      {nodes.length > 0 && <ChainGraph nodes={nodes} label={`Nodes of ${template}`} />}
    </>
  );
}
