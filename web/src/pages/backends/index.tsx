// The trainers of this machine: whether each can be used, why not, and what fixes it.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "wouter";
import { client, dataOf } from "../../api/client";
import { useLogin } from "../../api/login";
import type { BackendRow } from "../../api/schema";
import { ActionButton } from "../../components/action";
import { useCancelable } from "../../components/cancelable";
import { formatBytes, formatDuration, formatTime, labelOf } from "../../components/format";
import { MIB, useGpus } from "../../components/gpu_memory";
import { Page, Queried } from "../../components/page";
import { Prose } from "../../components/prose";
import { Facts } from "../../components/table";
import { useDoctor } from "../settings/doctor";

const RUNNING_MS = 1500;
const QUIET_MS = 15_000;

export default function BackendsPage() {
  const queries = useQueryClient();
  const backends = useQuery({
    queryKey: ["backends"],
    queryFn: () => dataOf(client.GET("/api/v1/backends", { params: { query: { imports: false } } })),
    refetchInterval: (query) =>
      query.state.data?.rows.some((row) => row.installation?.state === "running") ? RUNNING_MS : QUIET_MS,
  });
  const imports = useCancelable(async (_: void, signal) => {
    const list = await dataOf(client.GET("/api/v1/backends", { params: { query: { imports: true } }, signal }));
    queries.setQueryData(["backends"], list);
    return list;
  });
  return (
    <Page
      title="Backends"
      actions={
        <ActionButton mutation={imports} variables={undefined} onCancel={imports.cancel}>
          Test imports
        </ActionButton>
      }
    >
      <Machine />
      <Queried query={backends}>
        {({ rows }) => (
          <div className="cards">
            {rows.map((row) => (
              <Backend key={row.name} row={row} />
            ))}
          </div>
        )}
      </Queried>
    </Page>
  );
}

/** Devices of the trainers, and the Python that runs them. */
function Machine() {
  const login = useLogin();
  const gpus = useGpus(QUIET_MS);
  const doctor = useDoctor(login.tenant === "");
  const python = doctor.data?.checks.find((check) => check.name === "python")?.detail;
  const devices = gpus.data?.gpus.map(
    (gpu) => `GPU ${gpu.index}, ${gpu.name}, ${formatBytes(gpu.memory_total_mb * MIB)}`,
  );
  if (!gpus.data) return null;
  const none = gpus.data.state === "no GPU" ? "the CPU, no GPU" : gpus.data.state;
  return (
    <p>
      This machine: {devices?.length ? devices.join("; ") : none}
      {python && `; Python ${python}`}
    </p>
  );
}

function Backend({ row }: { row: BackendRow }) {
  const usable = row.available && row.fits;
  return (
    <section className="panel" aria-labelledby={`backend-${row.name}`}>
      <div className="panel-head">
        <h2 id={`backend-${row.name}`}>{row.name}</h2>
        <span className={usable ? "check-ok" : row.available ? "check-note" : "check-problem"}>
          <span aria-hidden="true">{usable ? "●" : row.available ? "○" : "✕"}</span>{" "}
          {usable ? "ready" : row.available ? "no device" : "not available"}
        </span>
      </div>
      <Facts
        facts={[
          ["Version", row.version],
          ["Imports", row.available ? row.imports : ""],
          ["Computes on", row.devices.join(", ")],
        ]}
      />
      {row.why && (
        <p>
          <Prose text={row.why} />
        </p>
      )}
      {row.fix && (
        <p className="quiet">
          <Prose text={row.fix} />
        </p>
      )}
      <Options row={row} />
      <Installing row={row} />
      {usable && <SmokeTest name={row.name} />}
    </section>
  );
}

/** What a chain may ask of it: the stages, the methods and the settings that it takes. */
function Options({ row }: { row: BackendRow }) {
  const { settings, ...axes } = row.options;
  const facts = [...Object.entries(axes), ...Object.entries(settings)];
  return (
    <details>
      <summary>Options</summary>
      <Facts facts={facts.map(([name, values]) => [name in settings ? name : labelOf(name), values.join(", ")])} />
    </details>
  );
}

/** Install in the background, see how far it is, stop it. */
function Installing({ row }: { row: BackendRow }) {
  const queries = useQueryClient();
  const login = useLogin();
  const refresh = () => queries.invalidateQueries({ queryKey: ["backends"] });
  const install = useMutation({
    mutationFn: () =>
      client.POST("/api/v1/backends/install", { body: { names: [row.name], background: true } as never }),
    onSuccess: refresh,
  });
  const cancel = useMutation({
    mutationFn: () => client.POST("/api/v1/backends/cancel", { body: { name: row.name } }),
    onSuccess: refresh,
  });
  const installation = row.installation;
  const running = installation?.state === "running";
  const mayInstall = row.installable && login.allows("admin") && login.tenant === "";
  return (
    <>
      {installation && (
        <div aria-live="polite">
          <p>
            Installation {installation.state}
            {running ? `, ${formatDuration(installation.seconds)} so far` : ""}; started{" "}
            {formatTime(installation.started)}
          </p>
          {running && <progress aria-label={`Installation of ${row.name}`} />}
          {installation.lines.length > 0 && (
            <pre className="installation" tabIndex={0} aria-label={`Last lines of the installation of ${row.name}`}>
              {installation.lines.join("\n")}
            </pre>
          )}
        </div>
      )}
      {mayInstall && (
        <div className="actions">
          {running ? (
            <ActionButton mutation={cancel} variables={undefined} danger confirm={`Stop installing ${row.name}?`}>
              Stop
            </ActionButton>
          ) : (
            !row.available && (
              <ActionButton mutation={install} variables={undefined}>
                Install
              </ActionButton>
            )
          )}
        </div>
      )}
    </>
  );
}

/** Two steps of a real training on this backend, as a job. */
function SmokeTest({ name }: { name: BackendRow["name"] }) {
  const login = useLogin();
  const test = useMutation({
    mutationFn: () => dataOf(client.POST("/api/v1/backends/test", { body: { name } as never })),
  });
  if (!login.allows("run")) return null;
  return (
    <div className="actions">
      <ActionButton mutation={test} variables={undefined}>
        Smoke test
      </ActionButton>
      {test.data && (
        <span role="status">
          Two steps are trained as <Link href={`/jobs/${test.data.id}`}>{test.data.id}</Link>.
        </span>
      )}
    </div>
  );
}
