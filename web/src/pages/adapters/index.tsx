// Adapter versions by role; the live one of each is marked.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Table } from "../../components/table";
import { useNewestEvaluations, VerdictOf } from "../evaluations/verdict";

/** A row of `adapters list`. */
export interface AdapterRow {
  name: string;
  live: boolean;
  kind: string;
  base: string;
  evaluated: boolean;
  created: string;
  sha256: string;
}

export const useAdapters = () =>
  useQuery({
    queryKey: ["adapters"],
    queryFn: async () => (await dataOf(client.GET("/api/v1/adapters"))).rows as unknown as AdapterRow[],
    refetchInterval: 10_000,
  });

export const roleOf = (name: string): string => name.replace(/\/v\d+$/, "");

export default function AdaptersPage() {
  const query = useAdapters();
  return (
    <Page title="Adapters">
      <Queried query={query}>
        {(rows) =>
          rows.length === 0 ? (
            <Empty title="No adapters yet">
              <p>
                A chain with a deployer registers its adapter when the evaluation says that it is better. Start from the
                template qa-pipeline on <Link href="/chains">Chains</Link>.
              </p>
            </Empty>
          ) : (
            [...new Set(rows.map((row) => roleOf(row.name)))].map((role) => (
              <Section key={role} title={role}>
                <VersionTable rows={rows.filter((row) => roleOf(row.name) === role).reverse()} role={role} />
              </Section>
            ))
          )
        }
      </Queried>
    </Page>
  );
}

function VersionTable({ rows, role }: { rows: readonly AdapterRow[]; role: string }) {
  const evaluations = useNewestEvaluations().data?.evaluations ?? [];
  return (
    <Table
      cards
      caption={`Versions of ${role}`}
      rows={rows}
      rowKey={(row) => row.name}
      columns={[
        { title: "Version", cell: (row) => <Link href={`/adapters/${row.name}`}>{row.name}</Link> },
        { title: "State", cell: (row) => (row.live ? <strong className="verdict-good">● live</strong> : "") },
        { title: "Kind", cell: (row) => row.kind },
        { title: "Base model", cell: (row) => row.base },
        { title: "Evaluation", cell: (row) => <VerdictOf version={row} evaluations={evaluations} /> },
        { title: "Created", cell: (row) => formatTime(Date.parse(row.created) / 1000) },
        {
          title: "Chat",
          cell: (row) => row.kind === "adapter" && <Link href={`/adapters/${row.name}/chat`}>Chat</Link>,
        },
      ]}
    />
  );
}
