// What an operator looks at: doctor, settings with their sources, tokens, the audit log.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { MachineSetting } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { formatTime } from "../../components/format";
import { Empty } from "../../components/notes";
import { Page, Queried, Section } from "../../components/page";
import { Prose } from "../../components/prose";
import { Table } from "../../components/table";
import { AuditLog } from "./audit";
import { Doctor } from "./doctor";
import { LimitsPanel } from "./limits";

export default function SettingsPage() {
  const login = useLogin();
  const owns = login.allows("admin") && login.tenant === "";
  return (
    <Page title="Settings">
      {login.tenant === "" ? (
        <Doctor />
      ) : (
        <Empty title="This login is for one tenant">
          <p>The state of the machine is for logins that are for all tenants.</p>
        </Empty>
      )}
      <LimitsPanel />
      {owns ? (
        <>
          <MachineSettings />
          <Tokens />
          <AuditLog />
        </>
      ) : (
        login.tenant === "" && <p>Settings, tokens and the audit log need a login with the scope admin.</p>
      )}
    </Page>
  );
}

const toText = (value: unknown) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));

function MachineSettings() {
  const settings = useQuery({ queryKey: ["settings"], queryFn: () => dataOf(client.GET("/api/v1/settings")) });
  return (
    <Section title="Settings of this machine">
      <Queried query={settings}>
        {({ file, settings: settingList }) => (
          <>
            <p>
              Set in <code>{file}</code> or by an environment variable; read when the service starts.
            </p>
            <Table<MachineSetting>
              caption="Settings of this machine"
              rows={settingList}
              rowKey={(row) => row.name}
              columns={[
                { title: "Setting", cell: (row) => <code title={row.variable}>{row.name}</code> },
                { title: "Value", cell: (row) => <span className="value">{toText(row.value)}</span> },
                { title: "From", cell: (row) => row.source },
                { title: "Meaning", cell: (row) => <Prose text={row.text} /> },
              ]}
            />
          </>
        )}
      </Queried>
    </Section>
  );
}

function Tokens() {
  const queries = useQueryClient();
  const tokens = useQuery({ queryKey: ["tokens"], queryFn: () => dataOf(client.GET("/api/v1/tokens")) });
  const revoke = useMutation({
    mutationFn: (name: string) => client.DELETE("/api/v1/tokens/{name}", { params: { path: { name } } }),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["tokens"] }),
  });
  return (
    <Section title="Tokens">
      <Queried query={tokens}>
        {({ tokens: tokenList }) =>
          tokenList.length === 0 ? (
            <Empty title="No token yet">
              <p>A token is shown once, so it is made on the machine itself:</p>
              <pre>trainyard tokens create --name NAME --scope run</pre>
            </Empty>
          ) : (
            <Table
              caption="Tokens"
              rows={tokenList}
              rowKey={(token) => token.name}
              columns={[
                { title: "Token", cell: (token) => token.name },
                { title: "Scope", cell: (token) => token.scope },
                { title: "Tenant", cell: (token) => token.tenant || "every tenant" },
                { title: "Made", cell: (token) => formatTime(token.created) },
                { title: "Expires", cell: (token) => formatTime(token.expires) },
                { title: "Valid", cell: (token) => (token.valid ? "yes" : "no") },
                {
                  title: "Actions",
                  cell: (token) =>
                    token.valid && (
                      <ActionButton
                        mutation={revoke}
                        variables={token.name}
                        danger
                        confirm={`Revoke ${token.name}? Who uses it is refused at once.`}
                      >
                        Revoke<span className="visually-hidden"> {token.name}</span>
                      </ActionButton>
                    ),
                },
              ]}
            />
          )
        }
      </Queried>
    </Section>
  );
}
