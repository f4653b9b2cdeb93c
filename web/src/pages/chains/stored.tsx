// A stored chain: its graph, its revisions with what differs between two of them, and its runs.

import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { ChainDetail } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { formatDuration, formatTime } from "../../components/format";
import { ChainGraph, type GraphNode } from "../../components/graph";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Pager } from "../../components/pager";
import { QuestionNote, questionsOf, useQuestion } from "../../components/question";
import { StateBadge } from "../../components/state";
import { Facts, Table } from "../../components/table";
import { expand } from "./editor/server";

export default function StoredChainPage({ chain }: { chain: string }) {
  const { allows } = useLogin();
  const queries = useQueryClient();
  const [, navigate] = useLocation();
  const chainDetail = useQuery({
    queryKey: ["chains", chain],
    queryFn: () => dataOf(client.GET("/api/v1/chains/{chain}", { params: { path: { chain } } })),
  });
  const start = useMutation({
    mutationFn: (yes: boolean) =>
      dataOf(client.POST("/api/v1/chains/{chain}/run", { params: { path: { chain } }, body: { yes } as never })),
    onSuccess: (run) => navigate(`/chains/${chain}/edit?run=${(run as { id: string }).id}`),
  });
  const question = useQuestion(questionsOf(start.error));
  const remove = useMutation({
    mutationFn: () => dataOf(client.DELETE("/api/v1/chains/{chain}", { params: { path: { chain } } })),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["chains"] });
      navigate("/chains");
    },
  });
  return (
    <Page
      title={chainDetail.data ? `Chain ${chainDetail.data.name}` : "Chain"}
      actions={
        <>
          <Link href={`/chains/${chain}/edit`} className="button">
            Open in the editor
          </Link>
          {allows("run") && (
            <>
              <ActionButton mutation={start} variables={question.yes} question={question}>
                Run
              </ActionButton>
              <ActionButton
                mutation={remove}
                variables={undefined}
                danger
                confirm={`Delete ${chainDetail.data?.name ?? chain} with all its revisions?`}
              >
                Delete
              </ActionButton>
            </>
          )}
        </>
      }
    >
      <QuestionNote question={question} />
      <Queried query={chainDetail}>
        {(data) => (
          <div className="stack">
            <Section title="Newest revision">
              <Facts
                facts={[
                  ["Id", data.id],
                  ["Revision", data.revision],
                  ["Description", data.description],
                  ["Tenant", data.tenant],
                  ["Author", data.author],
                  ["Stored", formatTime(data.created)],
                  ["Digest", <code key="digest">{data.digest.slice(0, 12)}</code>],
                ]}
              />
              <Shape chainDetail={data} />
            </Section>
            <Runs chain={chain} />
            <Revisions chainDetail={data} />
          </div>
        )}
      </Queried>
    </Page>
  );
}

function Shape({ chainDetail }: { chainDetail: ChainDetail }) {
  const expansion = useQuery({
    queryKey: ["expand", chainDetail.etag, chainDetail.id],
    queryFn: ({ signal }) => expand({ target: chainDetail.body }, signal),
  });
  return (
    <Queried query={expansion}>
      {({ nodes, spec }) => {
        const needs = new Map((spec.nodes as { id: string; needs: string[] }[]).map((node) => [node.id, node.needs]));
        const toText: GraphNode[] = nodes.map((node) => ({ ...node, needs: needs.get(node.id) ?? [] }));
        return <ChainGraph nodes={toText} label={`Nodes of ${chainDetail.name}`} />;
      }}
    </Queried>
  );
}

const RUNS = 50;

function Runs({ chain }: { chain: string }) {
  const [offset, setOffset] = useState(0);
  const query = { offset, limit: RUNS + 1 }; // one more says whether there are older ones
  const runs = useQuery({
    queryKey: ["chains", chain, "runs", offset],
    queryFn: () => dataOf(client.GET("/api/v1/chains/{chain}/runs", { params: { path: { chain }, query } })),
    refetchInterval: 3000,
    placeholderData: keepPreviousData,
  });
  return (
    <Section title="Runs">
      <Queried query={runs}>
        {({ runs }) =>
          runs.length === 0 && offset === 0 ? (
            <Empty title="No run yet">
              <p>Press Run, or open the chain in the editor and run it there.</p>
            </Empty>
          ) : (
            <>
              <Table
                caption="Runs of the chain"
                rows={runs.slice(0, RUNS)}
                rowKey={(run) => run.run_id}
                columns={[
                  { title: "Run", cell: (run) => <Link href={`/jobs/${run.id}`}>{run.name}</Link> },
                  { title: "Revision", cell: (run) => run.revision, numeric: true },
                  { title: "State", cell: (run) => <StateBadge state={run.state} detail={run.detail} /> },
                  { title: "Created", cell: (run) => formatTime(run.created) },
                  { title: "Time", cell: (run) => formatDuration(run.seconds), numeric: true },
                  {
                    title: "",
                    cell: (run) => (
                      <Link href={`/chains/${chain}/edit?run=${run.id}`} aria-label={`Show ${run.name} on the canvas`}>
                        On the canvas
                      </Link>
                    ),
                  },
                ]}
              />
              <Pager
                label="runs"
                range={offset > 0 || runs.length > RUNS ? `Page ${offset / RUNS + 1}` : ""}
                hasPrevious={offset > 0}
                hasNext={runs.length > RUNS}
                onPrevious={() => setOffset(offset - RUNS)}
                onNext={() => setOffset(offset + RUNS)}
              />
            </>
          )
        }
      </Queried>
    </Section>
  );
}

function Revisions({ chainDetail }: { chainDetail: ChainDetail }) {
  const [oldRevision, setOldRevision] = useState(Math.max(1, chainDetail.revision - 1));
  const [newRevision, setNewRevision] = useState(chainDetail.revision);
  const difference = useQuery({
    queryKey: ["chains", chainDetail.id, "diff", oldRevision, newRevision],
    queryFn: () =>
      dataOf(
        client.GET("/api/v1/chains/{chain}/diff", {
          params: { path: { chain: chainDetail.id }, query: { before: oldRevision, after: newRevision } },
        }),
      ),
    staleTime: Infinity,
  });
  const revisions = [...chainDetail.revisions].reverse();
  const choice = (label: string, value: number, set: (revision: number) => void) => (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => set(Number(event.target.value))}>
        {revisions.map((revision) => (
          <option key={revision.revision}>{revision.revision}</option>
        ))}
      </select>
    </label>
  );
  return (
    <Section title="Revisions">
      <Table
        caption="Revisions"
        rows={revisions}
        rowKey={(revision) => revision.revision}
        columns={[
          { title: "Revision", cell: (revision) => revision.revision, numeric: true },
          { title: "Stored", cell: (revision) => formatTime(revision.created) },
          { title: "Author", cell: (revision) => revision.author },
          { title: "Digest", cell: (revision) => <code>{revision.digest.slice(0, 12)}</code> },
        ]}
      />
      {chainDetail.revision > 1 && (
        <>
          <div className="actions">
            {choice("Difference of", oldRevision, setOldRevision)}
            {choice("and", newRevision, setNewRevision)}
          </div>
          <Queried query={difference}>
            {({ changes }) =>
              changes.length === 0 ? (
                <p className="quiet">The two do not differ.</p>
              ) : (
                <Table
                  caption={`Settings that differ between revision ${oldRevision} and ${newRevision}`}
                  rows={changes}
                  rowKey={(change) => change.name}
                  columns={[
                    { title: "Setting", cell: (change) => <code>{change.name}</code> },
                    { title: `Revision ${oldRevision}`, cell: (change) => toText(change.before) },
                    { title: `Revision ${newRevision}`, cell: (change) => toText(change.after) },
                  ]}
                />
              )
            }
          </Queried>
        </>
      )}
    </Section>
  );
}

const toText = (value: unknown): string =>
  value == null ? "–" : typeof value === "string" ? value : JSON.stringify(value);
