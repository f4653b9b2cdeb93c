// One adapter version: where it came from, its evaluation, its card; make it live, go back, or remove it.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useLocation } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import { ActionButton } from "../../components/action";
import { formatBytes, formatNumber, formatTime } from "../../components/format";
import { Interval, type IntervalValue } from "../../components/interval";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Facts, Table } from "../../components/table";
import { LineagePanel } from "./lineage";
import { Verdict } from "../evaluations/verdict";
import { ArtifactTable } from "../data";

interface Line {
  metric: string;
  rows: number;
  baseline: number;
  candidate: number;
  improvement: IntervalValue;
}

/** The manifest of a version, as far as this page shows it. */
interface Version {
  tenant: string;
  role: string;
  version: number;
  sha256: string;
  kind: string;
  created: number;
  live: boolean;
  history: { version: number | null; action: string; at: number }[];
  files: Record<string, { bytes: number; sha256: string }>;
  facts: {
    base_model?: string;
    gate?: { better: boolean; reasons?: string[]; cautions?: string[] };
    report?: { baseline?: string; benchmarks?: Record<string, Line> };
    data?: { source: string; format: string; rows: number; sha256: string }[];
    training?: Record<string, unknown>;
    origin?: { source?: string };
  };
}

export default function VersionPage({ tenant, role, version }: { tenant: string; role: string; version: string }) {
  const name = `${tenant}/${role}/${version}`;
  const query = useQuery({
    queryKey: ["adapter", name],
    queryFn: async () =>
      (await dataOf(client.GET("/api/v1/adapters/show", { params: { query: { name } } }))).record as unknown as Version,
    refetchInterval: 10_000,
  });
  return (
    <Page title={name} actions={<Link href="/adapters">All adapters</Link>}>
      <Queried query={query}>
        {(version) => (
          <>
            <State name={name} version={version} />
            <Evaluated version={version} />
            <LineagePanel name={name} />
            <DataAndRuns version={version} />
            <History version={version} />
            <Card name={name} />
          </>
        )}
      </Queried>
    </Page>
  );
}

/** Requests without `targets`, which only a caller on the machine may give: the schema has its default. */
type Named = { name: string; targets: string[] };
type NamedRole = { role: string; targets: string[] };

function State({ name, version }: { name: string; version: Version }) {
  return (
    <Section
      title="Version"
      actions={
        <>
          {version.kind === "adapter" && <Link href={`/adapters/${name}/chat`}>Chat with it</Link>}
          <Actions name={name} version={version} />
        </>
      }
    >
      <Facts
        facts={[
          ["State", version.live ? <strong className="verdict-good">● live</strong> : "not live"],
          ["Kind", version.kind],
          ["Base model", version.facts.base_model],
          ["Created", formatTime(version.created)],
          ["Size", formatBytes(Object.values(version.files).reduce((sum, file) => sum + file.bytes, 0))],
          ["Published by", version.facts.origin?.source],
          ["SHA-256", <code>{version.sha256}</code>],
        ]}
      />
    </Section>
  );
}

function Actions({ name, version }: { name: string; version: Version }) {
  const queries = useQueryClient();
  const [, navigate] = useLocation();
  const mayRun = useLogin().allows("run");
  const role = `${version.tenant}/${version.role}`;
  const onSuccess = () =>
    queries.invalidateQueries({ predicate: (query) => String(query.queryKey[0]).startsWith("adapter") });
  const promote = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/adapters/promote", { body: { name } as Named })),
    onSuccess,
  });
  const rollback = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/adapters/rollback", { body: { role } as NamedRole })),
    onSuccess,
  });
  const remove = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/adapters/delete-version", { body: { name, force: false } })),
    onSuccess: async () => {
      navigate("/adapters");
      await onSuccess();
    },
  });
  if (!mayRun) return null;
  return (
    <>
      {!version.live && (
        <ActionButton
          mutation={promote}
          variables={undefined}
          confirm={`Make ${name} live on all targets of its deployment?`}
          busy={`Loading ${name} on each target and asking it`}
        >
          Promote
        </ActionButton>
      )}
      {version.live && (
        <ActionButton
          mutation={rollback}
          variables={undefined}
          danger
          confirm={`Roll ${role} back to the version that ${name} replaced?`}
          busy={`Loading the version before ${name} on each target and asking it`}
        >
          Roll back
        </ActionButton>
      )}
      {!version.live && (
        <ActionButton
          mutation={remove}
          variables={undefined}
          danger
          confirm={`Remove the files of ${name}? Its number is never used again.`}
        >
          Delete
        </ActionButton>
      )}
      <span role="status">
        {[promote, rollback].map((outcome, index) => outcome.data && <Done key={index} outcome={outcome.data} />)}
      </span>
    </>
  );
}

function Done({ outcome }: { outcome: { version: string; warnings?: readonly string[] } }) {
  return (
    <>
      {outcome.version} is live. {outcome.warnings?.join(" ")}
    </>
  );
}

function Evaluated({ version }: { version: Version }) {
  const lines = Object.entries(version.facts.report?.benchmarks ?? {});
  return (
    <Section title="Evaluation">
      {version.facts.gate && version.facts.gate.better != null ? (
        <p>
          <Verdict
            better={version.facts.gate.better}
            cautions={version.facts.gate.cautions}
            baseline={version.facts.report?.baseline}
          />
        </p>
      ) : (
        <p>It was registered without an evaluation.</p>
      )}
      {lines.length > 0 && (
        <Table
          caption="Benchmarks"
          rows={lines}
          rowKey={([label]) => label}
          columns={[
            {
              title: "Benchmark",
              cell: ([label, line]) => (
                <>
                  {label}
                  <div className="quiet">{line.metric}</div>
                </>
              ),
            },
            { title: "Rows", numeric: true, cell: ([, line]) => formatNumber(line.rows) },
            { title: "Baseline", numeric: true, cell: ([, line]) => formatNumber(line.baseline) },
            { title: "This version", numeric: true, cell: ([, line]) => formatNumber(line.candidate) },
            { title: "Improvement", cell: ([, line]) => <Interval value={line.improvement} /> },
          ]}
        />
      )}
    </Section>
  );
}

/** The runs that made these weights, and the data sets that they read. */
function DataAndRuns({ version }: { version: Version }) {
  const runs = useQuery({
    queryKey: ["artifacts", "of", version.sha256],
    queryFn: () =>
      dataOf(client.GET("/api/v1/artifacts", { params: { query: { sha256: version.sha256, limit: 20 } } })),
  });
  return (
    <Section title="Data and runs">
      {version.facts.data && version.facts.data.length > 0 && (
        <Table
          caption="Data sets"
          rows={version.facts.data}
          rowKey={(set, index) => `${set.sha256}${index}`}
          columns={[
            { title: "Data", cell: (set) => set.source },
            { title: "Format", cell: (set) => set.format },
            { title: "Rows", numeric: true, cell: (set) => formatNumber(set.rows) },
            { title: "SHA-256", cell: (set) => <code>{set.sha256.slice(0, 16)}</code> },
          ]}
        />
      )}
      <Queried query={runs}>
        {({ artifacts }) =>
          artifacts.length === 0 ? (
            <Empty title="No run of this home has these weights">
              <p>It was made elsewhere, by a night, or its run was removed.</p>
            </Empty>
          ) : (
            <ArtifactTable rows={artifacts} caption="Runs that made it" />
          )
        }
      </Queried>
    </Section>
  );
}

function History({ version }: { version: Version }) {
  return (
    <Section title={`History of ${version.tenant}/${version.role}`}>
      {version.history.length === 0 && <p>No version of this role was ever live.</p>}
      {version.history.length > 0 && (
        <Table
          caption="Which version was live when"
          rows={[...version.history].reverse()}
          rowKey={(_, index) => index}
          columns={[
            { title: "When", cell: (entry) => formatTime(entry.at) },
            { title: "Action", cell: (entry) => entry.action },
            {
              title: "Live then",
              cell: (entry) =>
                entry.version == null ? (
                  "none"
                ) : (
                  <Link
                    href={`/adapters/${version.tenant}/${version.role}/v${entry.version}`}
                  >{`v${entry.version}`}</Link>
                ),
            },
          ]}
        />
      )}
    </Section>
  );
}

function Card({ name }: { name: string }) {
  const card = useQuery({
    queryKey: ["adapter-card", name],
    queryFn: () => dataOf(client.GET("/api/v1/adapters/card", { params: { query: { name } } })),
  });
  return (
    <Section title="Model card">
      <Queried query={card}>{(version) => <pre className="cell-text">{version.markdown}</pre>}</Queried>
    </Section>
  );
}
