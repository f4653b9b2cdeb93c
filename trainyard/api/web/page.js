// The pages of the dashboard: tables of what the REST API says, read again every few seconds. Texts are set as text, so
// that no name or message of a job is read as HTML.

const api = "/api/v1";
const refreshMs = 3000;
const byId = (id) => document.getElementById(id);

const time = (seconds) => (seconds == null ? "" : new Date(seconds * 1000).toLocaleString());
const number = (value) => (value == null ? "" : Number(value.toPrecision(4)).toString());
const steps = (job) => (job.step ? `${job.step}${job.total_steps ? ` / ${job.total_steps}` : ""}` : "");

const tables = {
  jobs: {
    title: "Jobs", path: "/jobs?limit=100", rows: (found) => found.jobs,
    empty: "No job yet. Start one by POST /api/v1/jobs or trainyard jobs create.",
    columns: {
      id: (job) => job.id, name: (job) => job.name, state: (job) => [job.state, job.detail].filter(Boolean).join(", "),
      step: steps, loss: (job) => number(job.loss), created: (job) => time(job.created), run: (job) => ({ text: "Prefect", url: job.url }),
    },
  },
  chains: {
    title: "Stored chains", path: "/chains", rows: (found) => found.chains,
    empty: "No chain is stored. Store one by POST /api/v1/chains or trainyard chains create.",
    columns: {
      id: (chain) => chain.id, name: (chain) => chain.name, tenant: (chain) => chain.tenant, revision: (chain) => chain.revision,
      nodes: (chain) => chain.nodes, changed: (chain) => time(chain.created), by: (chain) => chain.author,
    },
  },
  backends: {
    title: "Backends", path: "/backends?imports=false", rows: (found) => found.rows, empty: "There is none.",
    columns: {
      name: (one) => one.name, available: (one) => (one.available ? "yes" : "no"), version: (one) => one.version ?? "",
      devices: (one) => one.devices.join(", "), why: (one) => one.why, "what to do": (one) => one.fix,
    },
  },
  gpus: {
    title: "GPUs", path: "/gpus", rows: (found) => found.gpus, empty: "This machine has no GPU.",
    columns: {
      name: (gpu) => gpu.name, "used (MiB)": (gpu) => gpu.memory_used_mb, "free (MiB)": (gpu) => gpu.memory_free_mb,
      "busy (%)": (gpu) => gpu.utilization_gpu ?? "", "°C": (gpu) => gpu.temperature_c ?? "", W: (gpu) => gpu.power_draw_w ?? "",
    },
  },
};
const pages = {
  "/dashboard": ["jobs", "gpus"],
  "/dashboard/jobs": ["jobs"],
  "/dashboard/chains": ["chains"],
  "/dashboard/backends": ["backends", "gpus"],
};

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

function cell(value) {
  if (value === null || typeof value !== "object") return element("td", String(value ?? ""));
  const made = element("td", "");
  if (/^https?:\/\//.test(value.url ?? "")) made.append(element("a", value.text, { href: value.url, rel: "noreferrer" }));
  return made;
}

function table(part, rows) {
  const section = element("section", "");
  section.append(element("h2", part.title));
  if (!rows.length) {
    section.append(element("p", part.empty));
    return section;
  }
  const head = element("tr", "");
  head.append(...Object.keys(part.columns).map((name) => element("th", name, { scope: "col" })));
  const body = rows.map((row) => {
    const line = element("tr", "");
    line.append(...Object.values(part.columns).map((value) => cell(value(row))));
    return line;
  });
  const made = element("table", "");
  made.append(head, ...body);
  const scroll = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": part.title });
  scroll.append(made);
  section.append(scroll);
  return section;
}

function report(text) {
  byId("problem").hidden = !text;
  byId("problem").textContent = text;
}

async function ask(path, options = {}) {
  const answer = await fetch(api + path, options);
  const found = answer.status === 204 ? {} : await answer.json();
  if (!answer.ok) throw Object.assign(new Error([found.detail, found.do].filter(Boolean).join(" ")), { status: answer.status });
  return found;
}

function showLogin(wanted) {
  byId("login").hidden = !wanted;
  byId("logout").hidden = wanted;
  if (wanted) byId("page").replaceChildren();
}

async function refresh() {
  try {
    const parts = pages[location.pathname].map((name) => tables[name]);
    const answers = await Promise.all(parts.map((part) => ask(part.path)));
    byId("page").replaceChildren(...parts.map((part, place) => table(part, part.rows(answers[place]))));
    showLogin(false);
    report("");
  } catch (error) {
    if (error.status === 401) showLogin(true);
    else report(error.status ? error.message : "The service does not answer; what is shown may be old.");
  }
}

byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const body = JSON.stringify({ token: byId("token").value });
    await ask("/login", { method: "POST", headers: { "content-type": "application/json" }, body });
    byId("token").value = "";
    await refresh();
  } catch (error) {
    report(error.message);
  }
});

byId("logout").addEventListener("click", async () => {
  const { csrf } = await ask("/login");
  await ask("/logout", { method: "POST", headers: { "content-type": "application/json", "x-csrf-token": csrf }, body: "{}" });
  await refresh();
});

document.querySelector(`nav a[href="${location.pathname}"]`)?.setAttribute("aria-current", "page");
await refresh();
setInterval(refresh, refreshMs);
