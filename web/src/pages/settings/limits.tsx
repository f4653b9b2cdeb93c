// The tiers of this home, and the tier of the tenant of this login.

import { useQuery } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import type { components } from "../../api/schema";
import { formatNumber } from "../../components/format";
import { Queried, Section } from "../../components/page";
import { Table } from "../../components/table";

type Limits = components["schemas"]["Limits"];

const orUnlimited = (value: number | null | undefined) => (value == null ? "unlimited" : formatNumber(value));

export function LimitsPanel() {
  const limits = useQuery({ queryKey: ["limits"], queryFn: () => dataOf(client.GET("/api/v1/limits")) });
  return (
    <Section title="Limits">
      <Queried query={limits}>{(data) => <Tiers limits={data} />}</Queried>
    </Section>
  );
}

function Tiers({ limits }: { limits: Limits }) {
  if (limits.problem)
    return (
      <p role="alert" className="problem">
        No training starts. {limits.problem}
      </p>
    );
  if (!limits.tiers?.length) return <p>No policy is set: every tenant is unlimited.</p>;
  const tenants = Object.entries(limits.tenants ?? {});
  return (
    <>
      <p>
        The tenant {limits.tenant} is <strong>{limits.tier || "unlimited"}</strong>. Issued by {limits.issuer} on{" "}
        {limits.issued}
        {limits.expires && `, until ${limits.expires}`}; other tenants: {limits.default || "unlimited"}.
      </p>
      <Table
        caption="Tiers"
        rows={limits.tiers}
        rowKey={(tier) => tier.name}
        columns={[
          {
            title: "Tier",
            cell: (tier) => (tier.name === limits.tier ? <strong>{`● ${tier.name}`}</strong> : tier.name),
          },
          { title: "Backends", cell: (tier) => tier.backends?.join(", ") ?? "all" },
          { title: "Epochs", numeric: true, cell: (tier) => orUnlimited(tier.max_epochs) },
          { title: "Rows", numeric: true, cell: (tier) => orUnlimited(tier.max_rows) },
          { title: "At a time", numeric: true, cell: (tier) => orUnlimited(tier.workers) },
          ...(limits.features ?? []).map((feature) => ({
            title: feature.replaceAll("_", " "),
            cell: (tier: { features?: readonly string[] }) => (tier.features?.includes(feature) ? "yes" : "no"),
          })),
        ]}
      />
      {tenants.length > 0 && (
        <Table
          caption="Tenants with a tier of their own"
          rows={tenants}
          rowKey={([tenant]) => tenant}
          columns={[
            { title: "Tenant", cell: ([tenant]) => tenant },
            { title: "Tier", cell: ([, tier]) => tier },
          ]}
        />
      )}
    </>
  );
}
