"""Every verb of the product, once. The command line is a loop over this table, and so is every other surface.

A row names its request, its implementation and its renderer by dotted path, below `api/requests`, `api/verbs` and
`api/terminal`; `load` (`loading.py`) imports one of them when it is needed: importing this module imports no other
module of Trainyard than the parts of the table in `api/table/`. The response is what the implementation returns.

An implementation is `do(request, context) -> response`. It raises `TrainyardError` and prints nothing: progress goes
through `Context.say`. A new operation is a request in `api/requests/`, a function in `api/verbs/`, a renderer in
`api/terminal/` and a row here.
"""

from __future__ import annotations

from trainyard.api.table.adapters import ADAPTERS
from trainyard.api.table.data import DATA
from trainyard.api.table.operation import Operation, Scope
from trainyard.api.table.sessions import SESSIONS
from trainyard.api.table.words import WORDS

__all__ = ["API", "GROUPS", "OPERATIONS", "REQUESTS", "TEXTS", "VERBS", "Operation", "Scope", "route_of"]

READ, RUN, ADMIN = Scope
NOTHING = "base:Nothing"
REQUESTS, VERBS, TEXTS = "trainyard.api.requests.", "trainyard.api.verbs.", "trainyard.api.terminal."
"""What the paths of a row are relative to."""

OPERATIONS: dict[str, Operation] = {
    "up": Operation(
        "Start, or find running, the Prefect server, its pool and deployments, a worker and the embedded model server.",
        "stack:UpInput", "stack:up", "stack:up_text", ADMIN,
        local="It starts the services of this machine.",
    ),
    "down": Operation(
        "End the processes that `up` started on this home, the worker first so that its runs can save.",
        NOTHING, "stack:down", "stack:down_text", ADMIN,
        local="It ends the services of this machine, the API with them.",
    ),
    "demo": Operation(
        "Documents in, a served adapter out: the qa-pipeline on the sample handbook, with a control for comparison.",
        NOTHING, "demo:run_demo", "demo:demo_text", ADMIN,
        local="It starts the services of this machine, and takes minutes.",
    ),
    "dashboard": Operation(
        "A link that opens the dashboard and logs a browser in: once, within an hour.",
        NOTHING, "serving.dashboard:show_dashboard", "stack:dashboard_text", ADMIN,
        local="It prints a secret.",
    ),
    "env": Operation(
        "The variables that make `prefect` commands talk to this stack.",
        NOTHING, "stack:env", "stack:env_text", ADMIN, example='eval "$(trainyard env)"',
        local="It prints the string that opens this machine's Prefect server.",
    ),
    "settings": Operation(
        "The settings of this machine: value, default, and whether it is from the environment or trainyard.toml.",
        NOTHING, "machine.settings:show_settings", "stack:settings_text", ADMIN,
        route="GET /api/v1/settings",
    ),
    "doctor": Operation(
        "Look at versions, server, worker, models, disk and devices, and say what to do about what is wrong.",
        NOTHING, "doctor:examine", "stack:doctor_text", READ,
        route="GET /api/v1/doctor",
    ),
    "migrate": Operation(
        "Bring what earlier versions wrote below TRAINYARD_HOME into the form of this one.",
        "stack:MigrateInput", "stack:migrate", "stack:migration_text", RUN,
        local="It rewrites files below TRAINYARD_HOME.",
    ),
    "gc": Operation(
        "Remove what is not needed any more: old runs, results, logs, environments; with --dry-run, show it.",
        "stack:GcInput", "housekeeping.gc:collect", "stack:gc_text", ADMIN, example="trainyard gc --days 14 --dry-run",
    ),
    "backup": Operation(
        "Write a home with its Prefect database into one file, also while the stack is running.",
        "stack:BackupInput", "housekeeping.backup:back_up", "stack:backup_text", ADMIN,
        example="trainyard backup /mnt/backups/trainyard.tar.gz",
        local="It writes a file anywhere on this machine.",
    ),
    "restore": Operation(
        "Make the home of a backup again, at the same place, whole or not at all.",
        "stack:RestoreInput", "housekeeping.backup:restore", "stack:restored_text", ADMIN,
        local="It replaces files below TRAINYARD_HOME.",
    ),
    "check": Operation(
        "Say whether chain files would run, with all reasons at once; nothing is started.",
        "chains:CheckInput", "chains.check:check", "chains:check_text", READ,
        tenants=True, confined=True,
    ),
    "plan": Operation(
        "Show what a run would do: resolved config, order, reused results, sizes, times; nothing is started.",
        "chains:PlanInput", "chains.plan:plan", "chains:plan_text", READ,
        tenants=True, heavy=True, confined=True,
    ),
    "run": Operation(
        "Start a template or a file, or continue a run by its id; with --watch, follow it to its end.",
        "chains:RunInput", "chains.run:run", "chains:run_text", RUN,
        route="POST /api/v1/runs", status=202, tenants=True,
    ),
    "sweep": Operation(
        "Train a chain with many sets of values, stop what is worse early, and continue what is better.",
        "sweeps:SweepInput", "sweeps.start:sweep", "jobs:sweep_text", RUN,
        example="trainyard sweep chain.yaml -p 'trainer.learning_rate=loguniform(1e-5,1e-3)' --watch",
        route="POST /api/v1/sweeps",
    ),
    "sweep show": Operation(
        "The trials of a sweep with their rungs, steps and metrics; with --best, the chain of the best one.",
        "sweeps:ShowSweepInput", "sweeps.show:show_sweep", "jobs:sweep_text", READ,
        example="trainyard sweep show NAME --best > best.yaml",
        route="GET /api/v1/sweeps/{name}",
    ),
    "sweep list": Operation(
        "Every sweep, how far it is, and its best trial.",
        NOTHING, "sweeps.show:list_sweeps", "jobs:sweeps_text", READ,
        route="GET /api/v1/sweeps",
    ),
    "sweep stop": Operation(
        "End a sweep; its trainings save first, so that `trainyard sweep --continue` continues it.",
        "sweeps:SweepNameInput", "sweeps.start:stop_sweep", "jobs:sweep_text", RUN,
        route="POST /api/v1/sweeps/{name}/stop",
    ),
    "compare": Operation(
        "Trainings next to each other: settings; of two that ended also metrics, benchmarks, answers, curves.",
        "jobs:CompareInput", "monitoring.differing:compare", "chains:comparison_text", READ,
        example="trainyard compare desk shop/trainer-2 --plot",
        route="GET /api/v1/jobs/compare", heavy=True, tenants=True,
    ),
    "templates": Operation(
        "The templates with their nodes; with a name, its parameters: type, range, default, meaning.",
        "chains:TemplatesInput", "chains.describe:show_templates", "chains:templates_text", READ,
        route="GET /api/v1/chains/templates", tenants=True,
    ),
    "chains list": Operation(
        "The stored chains, the newest first: name, id, revision and digest.",
        "chains:StoredChainsInput", "chains.stored:list_chains", "chains:stored_chains_text", READ,
        route="GET /api/v1/chains", tenants=True,
    ),
    "chains create": Operation(
        "Store a chain, a job or the call of a template as revision 1 of a chain of its own, if it is valid.",
        "chains:StoreChainInput", "chains.stored:create_chain", "chains:stored_chain_text", RUN,
        example="trainyard chains create chain.yaml",
        route="POST /api/v1/chains", status=201, tenants=True,
        body="spec", body_schema="trainyard.api.verbs.chains.bodies:ChainBody",
    ),
    "chains show": Operation(
        "A stored chain as it was written, with its revisions.",
        "chains:ShowChainInput", "chains.stored:show_chain", "chains:stored_chain_text", READ,
        route="GET /api/v1/chains/{chain}", tenants=True,
    ),
    "chains update": Operation(
        "Store a new revision of a chain; what was written meanwhile is shown, and not overwritten.",
        "chains:UpdateChainInput", "chains.stored:update_chain", "chains:stored_chain_text", RUN,
        example="trainyard chains update guide chain.yaml --if-match 3-1f2e3d4c5b6a",
        route="PUT /api/v1/chains/{chain}", tenants=True,
        body="spec", body_schema="trainyard.api.verbs.chains.bodies:ChainBody",
    ),
    "chains delete": Operation(
        "Remove a stored chain with all its revisions; refused while a run of it has not ended.",
        "chains:StoredName", "chains.stored:delete_chain", "chains:deleted_chain_text", RUN,
        route="DELETE /api/v1/chains/{chain}", tenants=True,
    ),
    "chains run": Operation(
        "Start a run of a stored chain, by default of its newest revision; with --watch, follow it to its end.",
        "chains:RunChainInput", "chains.stored:run_chain", "chains:run_text", RUN,
        route="POST /api/v1/chains/{chain}/run", status=202, tenants=True,
    ),
    "chains runs": Operation(
        "The runs of a stored chain, the newest first, each with its revision.",
        "chains:ChainRunsInput", "chains.stored:list_chain_runs", "chains:chain_runs_text", READ,
        route="GET /api/v1/chains/{chain}/runs", tenants=True,
    ),
    "chains palette": Operation(
        "What chains are made of: the types of nodes with the schemas of their settings, and the ports.",
        NOTHING, "editing.drafts:show_palette", "editing.drafts:palette_text", READ,
        route="GET /api/v1/chains/palette", tenants=True,
    ),
    "chains expand": Operation(
        "A template, file or draft as a whole chain: ids, links and settings written out, and what is wrong with it.",
        "editing.drafts:ExpandInput", "editing.drafts:expand", "editing.drafts:expanded_text", READ,
        example="trainyard chains expand qa-pipeline -p documents=docs > chain.yaml",
        tenants=True, confined=True,
    ),
    "chains links": Operation(
        "Where a link from a node of a chain may lead: for each port and node yes, or why not.",
        "editing.drafts:LinksInput", "editing.drafts:show_links", "editing.drafts:links_text", READ,
        tenants=True, confined=True,
    ),
    "chains diff": Operation(
        "The settings in which two revisions of a stored chain differ.",
        "editing.drafts:DiffInput", "editing.revisions:show_difference", "editing.drafts:difference_text", READ,
        example="trainyard chains diff guide --before 1",
        route="GET /api/v1/chains/{chain}/diff", tenants=True,
    ),
    "schema": Operation(
        "The settings of a node, template, job, night or the machine; with --json, the JSON Schema for an editor.",
        "chains:SchemaInput", "chains.describe:show_schema", "chains:schema_text", READ,
        example="trainyard schema trainer",
        route="GET /api/v1/schema", tenants=True,
    ),
    "prove-resume": Operation(
        "Show that a training that was stopped or killed ends in the same bits as one that was not.",
        "trainers:ProveInput", "proof:prove_resume", "trainers:proof_text", RUN,
        local="It trains for minutes on all cores of this machine.",
    ),
    "serve": Operation(
        "Answer over HTTP until stopped: the REST API (role training), models and adapters, or the graph of nights.",
        "serving:ServeInput", "serving.serve:serve", "text:json_text", ADMIN,
        example="trainyard serve --role model --model starter --adapters handbook",
        local="It becomes a server on this machine.", endless=True,
    ),
    "mcp": Operation(
        "Answer an agent over the Model Context Protocol, on standard input and output: every command as a tool.",
        "serving:McpInput", "serving.mcp:serve_mcp", "text:json_text", ADMIN,
        example="trainyard mcp --scope run",
        local="It speaks on the standard input and output of a process.", endless=True,
    ),
    "chat": Operation(
        "Talk to an adapter and its base side by side; questions come from the terminal, a pipe or --question.",
        "serving:ChatInput", "serving.chat:chat", "chat.columns:chat_text", RUN,
        part_renderer="chat.columns:turn_text", reader="chat.reading:read_question",
        example="trainyard chat handbook",
        local="It asks questions in a terminal; over a network, ask the model server's /v1/chat/completions.",
    ),
    "eject": Operation(
        "Write a training as a folder of its own: a plain script to edit and run by hand, its spec and its rows.",
        "chains:EjectInput", "chains.eject:eject", "chains:eject_text", RUN,
        local="It writes a folder anywhere on this machine.",
    ),
    "import": Operation(
        "Write a config of Axolotl, LLaMA-Factory, TRL, Unsloth, Oumi or torchtune as a chain; no key is ignored.",
        "chains:ImportInput", "chains.imports:import_configs", "chains:import_text", RUN,
        local="It reads and writes files anywhere on this machine.",
    ),
    "export": Operation(
        "Write a trainer of a chain as a config of Axolotl or LLaMA-Factory.",
        "chains:ExportConfigInput", "chains.exports:export_chain", "chains:export_text", RUN,
        local="It reads and writes files anywhere on this machine.",
    ),
    **ADAPTERS,
    "backends": Operation(
        "Show every trainer: version, import, device, why it is not available and what fixes it.",
        "trainers:BackendsInput", "backends:show_backends", "trainers:backends_text", READ,
        route="GET /api/v1/backends", tenants=True,
    ),
    "backends install": Operation(
        "Make the environment of a trainer that cannot share ours; whole, or not at all.",
        "trainers:InstallInput", "backends:install_backends", "trainers:backends_text", ADMIN,
        route="POST /api/v1/backends/install",
    ),
    "backends cancel": Operation(
        "Stop an installation that is running in the background; what is half made is removed.",
        "trainers:CancelInstallInput", "backends:cancel_install", "trainers:backends_text", ADMIN,
        route="POST /api/v1/backends/cancel",
    ),
    "backends test": Operation(
        "Train two steps on a trainer, as a job: whether it works here, from its data to its adapter.",
        "trainers:BackendTestInput", "machine.smoke:try_backend", "chains:run_text", RUN,
        example="trainyard backends test native --watch",
        route="POST /api/v1/backends/test", status=202, tenants=True,
    ),
    "scripts list": Operation(
        "The training scripts of this home, and whether chains may run them.",
        NOTHING, "machine.scripts:list_scripts", "trainers:scripts_text", READ,
        route="GET /api/v1/scripts",
    ),
    "scripts show": Operation(
        "A training script of this home; `built-in` is the one that needs none.",
        "trainers:ScriptNameInput", "machine.scripts:show_script", "trainers:script_text", READ,
        route="GET /api/v1/scripts/{name}",
    ),
    "scripts save": Operation(
        "Write a training script of this home, if it is valid Python and nobody else was faster.",
        "trainers:SaveScriptInput", "machine.scripts:save_script", "trainers:saved_script_text", ADMIN,
        example="trainyard scripts save mine train.py",
        route="PUT /api/v1/scripts/{name}",
    ),
    "scripts draft": Operation(
        "The script that would carry out a trainer of a chain, with its resolved spec; nothing is written.",
        "trainers:DraftScriptInput", "machine.scripts:draft_script", "trainers:draft_text", READ,
        route="POST /api/v1/scripts/draft", heavy=True, confined=True,
    ),
    "jobs create": Operation(
        "Start one training on one data set, from a file or from parameters.",
        "jobs:CreateInput", "jobs:create_job", "chains:run_text", RUN,
        route="POST /api/v1/jobs", status=202, tenants=True,
        body="parameters", body_schema="trainyard.spec.job:JobSpec",
    ),
    "jobs list": Operation(
        "The newest jobs, their states and how far they are.",
        "jobs:JobsInput", "jobs:list_jobs", "jobs:jobs_text", READ,
        route="GET /api/v1/jobs", tenants=True,
    ),
    "jobs show": Operation(
        "One job: state, trainers, checkpoints, nodes and what it was started with.",
        "jobs:JobInput", "jobs:show_job", "jobs:job_detail_text", READ,
        route="GET /api/v1/jobs/{job}", tenants=True, stream="live.streams:follow_job",
    ),
    "jobs nodes": Operation(
        "The nodes of a run as they are now: state, progress, what each has left.",
        "jobs:JobInput", "monitoring.nodes:list_nodes", "editing.drafts:nodes_text", READ,
        route="GET /api/v1/jobs/{job}/nodes", tenants=True,
    ),
    "jobs node": Operation(
        "One node of a run: its settings, its lines and what it has left.",
        "jobs:NodeInput", "monitoring.nodes:show_node", "editing.drafts:node_text", READ,
        route="GET /api/v1/jobs/{job}/nodes/{node}", tenants=True,
    ),
    "jobs logs": Operation(
        "A job's log, with what its trainers printed; with --follow, as it comes.",
        "jobs:LogsInput", "monitoring.logs:show_logs", "jobs:log_text", READ, part_renderer="jobs:log_line_text",
        route="GET /api/v1/jobs/{job}/logs", tenants=True, stream="live.streams:follow_logs",
    ),
    "jobs metrics": Operation(
        "Loss and learning rate of every step of a job.",
        "jobs:MetricsInput", "jobs:show_metrics", "jobs:metrics_text", READ,
        route="GET /api/v1/jobs/{job}/metrics", tenants=True, stream="live.streams:follow_metrics",
    ),
    "jobs note": Operation(
        "Write what to remember about a job; lists and its page show it.",
        "jobs:NoteInput", "jobs:note_job", "jobs:noted_text", RUN,
        example='trainyard jobs note desk "too high a learning rate"',
        route="PUT /api/v1/jobs/{job}/note", tenants=True,
    ),
    "jobs pause": Operation(
        "Pause a job: its training saves at the next step, its process ends and its device is free.",
        "jobs:StopInput", "jobs:pause_job", "jobs:job_text", RUN,
        route="POST /api/v1/jobs/{job}/pause", tenants=True,
    ),
    "jobs resume": Operation(
        "Continue a job that is paused or has ended without a result, from its newest valid checkpoint.",
        "jobs:ResumeInput", "jobs:resume_job", "jobs:resumed_text", RUN,
        route="POST /api/v1/jobs/{job}/resume", tenants=True,
    ),
    "jobs cancel": Operation(
        "End a job; its training saves first, so that it can be resumed all the same.",
        "jobs:StopInput", "jobs:cancel_job", "jobs:job_text", RUN,
        route="POST /api/v1/jobs/{job}/cancel", tenants=True,
    ),
    "jobs retry": Operation(
        "Start a new job with the parameters of an earlier one; its newest checkpoint is used, if it left one.",
        "jobs:RetryInput", "monitoring.retrying:retry_job", "chains:run_text", RUN,
        route="POST /api/v1/jobs/{job}/retry", status=202, tenants=True,
    ),
    "jobs checkpoints": Operation(
        "The checkpoints of a job: step, size, metric and hash.",
        "jobs:CheckpointsInput", "monitoring.checkpoints:list_checkpoints", "jobs:checkpoints_text", READ,
        route="GET /api/v1/jobs/{job}/checkpoints", tenants=True,
    ),
    "jobs verify": Operation(
        "Read a job's checkpoints and compare each file with the hash in its manifest.",
        "jobs:VerifyInput", "monitoring.checkpoints:verify_checkpoints", "jobs:verified_text", READ,
        route="POST /api/v1/jobs/{job}/verify", tenants=True, heavy=True,
    ),
    "jobs samples": Operation(
        "What the model answered to held-out prompts at each evaluation of a job.",
        "jobs:SamplesInput", "monitoring.samples:show_samples", "jobs:samples_text", READ,
        route="GET /api/v1/jobs/{job}/samples", tenants=True,
    ),
    "jobs provenance": Operation(
        "Where a job's results come from: data and digests, results of nodes, ledger, versions, lineage.",
        "jobs:JobInput", "monitoring.provenance:show_provenance", "jobs:provenance_text", READ,
        route="GET /api/v1/jobs/{job}/provenance", tenants=True,
    ),
    **SESSIONS,
    "gpus": Operation(
        "The GPUs of this machine: memory, load, temperature, power, clocks, and the memory of each job.",
        NOTHING, "monitoring.gpus:show_gpus", "trainers:gpus_text", READ,
        route="GET /api/v1/gpus", tenants=True,
    ),
    **DATA,
    "artifacts list": Operation(
        "What the nodes of runs left, the newest run first: sets of rows, adapters, reports.",
        "records.artifacts:ArtifactsInput", "records.artifacts:list_artifacts",
        "records.artifacts:artifacts_text", READ,
        route="GET /api/v1/artifacts", tenants=True,
    ),
    "artifacts show": Operation(
        "One result of a run: what its node counted, its sets of rows and its files.",
        "records.artifacts:ArtifactInput", "records.artifacts:show_artifact", "text:json_text", READ,
        example="trainyard artifacts show 59b4dead validator sft",
        route="GET /api/v1/artifacts/{run}/{node}/{port}", tenants=True,
    ),
    "artifacts rows": Operation(
        "Rows of a result: those that are kept, a held-out set, or what was dropped and why.",
        "records.artifacts:ArtifactRowsInput", "records.artifacts:read_rows", "records.artifacts:rows_text", READ,
        example="trainyard artifacts rows 59b4dead validator sft --part dropped",
        route="GET /api/v1/artifacts/{run}/{node}/{port}/rows", tenants=True,
    ),
    "evaluations list": Operation(
        "The evaluations of runs, the newest first: verdict, primary metric, its interval.",
        "records.artifacts:EvaluationsInput", "records.evaluations:list_evaluations",
        "records.evaluations:evaluations_text", READ,
        route="GET /api/v1/evaluations", tenants=True,
    ),
    "evaluations show": Operation(
        "One evaluation: benchmarks with intervals and flips, the gate, answers side by side, the training.",
        "records.artifacts:EvaluationInput", "records.evaluations:show_evaluation",
        "records.evaluations:evaluation_text", READ,
        example="trainyard evaluations show 59b4dead",
        route="GET /api/v1/evaluations/{run}/{node}", tenants=True,
    ),
    "graph query": Operation(
        "Rows of one reading Cypher statement; values are given as parameters.",
        "graph:QueryInput", "graph:query_graph", "data:query_text", READ,
        route="POST /api/v1/graph/query", heavy=True,
    ),
    "graph stats": Operation(
        "Count the documents, entities and relations of the knowledge graph.",
        "graph:GraphInput", "graph:count_graph", "data:counts_text", READ,
        route="GET /api/v1/graph/stats", tenants=True,
    ),
    "graph entities": Operation(
        "Entities of the knowledge graph, by a part of their names.",
        "records.nights:EntitiesInput", "records.neighbors:list_entities", "records.nights:entities_text", READ,
        example="trainyard graph entities acme",
        route="GET /api/v1/graph/entities", tenants=True, heavy=True,
    ),
    "graph neighbors": Operation(
        "An entity, its relations, and the documents that name it.",
        "records.nights:NeighborsInput", "records.neighbors:show_neighbors", "records.nights:neighbors_text", READ,
        route="GET /api/v1/graph/entities/{key}", tenants=True, heavy=True,
    ),
    "graph export": Operation(
        "Write the knowledge graph as JSON lines, in the same order every time.",
        "graph:ExportInput", "graph:export_graph", "data:exported_text", RUN,
        local="It writes a file anywhere on this machine.",
    ),
    "nightly run": Operation(
        "Carry out one night: documents into the graph, full corpora into adapters; what is done is not done twice.",
        "nights:RunNightInput", "night:run_once", "nights:night_text", RUN,
        local="A night takes up to two hours; over a network, run its deployment: POST /api/v1/runs.",
    ),
    "nightly simulate": Operation(
        "Simulate nights in which everything goes wrong, and check that nothing is lost, doubled or half done.",
        "nights:SimulateInput", "night:simulate_nights", "nights:simulated_text", RUN,
        local="It computes for minutes on all cores of this machine.",
    ),
    "nightly worker": Operation(
        "Poll for markers and train them on this machine, until it is stopped.",
        "nights:WorkerInput", "night:run_worker", "text:json_text", ADMIN,
        local="It runs until it is stopped.", endless=True,
    ),
    "nightly status": Operation(
        "The last nights and the state of every marker.",
        "nights:NightInput", "night:show_nights", "nights:status_text", READ,
        route="GET /api/v1/nightly",
    ),
    "nightly list": Operation(
        "The nights that were, the newest first: state, headline, times.",
        "records.nights:NightsInput", "records.nights:list_night_reports", "records.nights:nights_text", READ,
        route="GET /api/v1/nightly/nights", tenants=True,
    ),
    "nightly show": Operation(
        "One night: phases against their budgets, corpora against their thresholds, what failed and what to do.",
        "records.nights:NightNameInput", "records.nights:show_night", "records.nights:night_detail_text", READ,
        route="GET /api/v1/nightly/nights/{night}", tenants=True,
    ),
    "corpus engineering": Operation(
        "Add the commits of a repository to a corpus: diff, message, review brief.",
        "nights:EngineeringInput", "night:add_commits", "nights:added_text", RUN,
        local="It reads a repository anywhere on this machine.",
    ),
    "corpus apprenticeship": Operation(
        "Add corrections to a corpus: what the model said (shadow), and what a person vouches for (verdict).",
        "nights:AddInput", "night:add_corrections", "nights:added_text", RUN,
        route="POST /api/v1/corpus/apprenticeship",
    ),
    "corpus status": Operation(
        "How many valid tuples each corpus contains, and how many make a training.",
        "nights:NightInput", "night:show_corpora", "nights:corpora_text", READ,
        route="GET /api/v1/corpus",
    ),
    "renderers verify": Operation(
        "Try the chat templates that are known, or a .jinja file: are turns kept, which tokens end an answer.",
        "trainers:RenderersInput", "data.renderers:verify_renderers", "trainers:renderers_text", READ,
        local="It reads templates anywhere on this machine.",
    ),
    "starter build": Operation(
        "Train the starter model again, from the recipe and corpus of the shipped weights, and compare the two.",
        NOTHING, "starter:build", "adapters:record_text", ADMIN,
        local="It trains for minutes on all cores of this machine.",
    ),
    "tokens create": Operation(
        "Make a token for the API: what it may do, for one tenant or for all; it is shown once.",
        "callers.tokens:CreateTokenInput", "callers.tokens:create_token", "callers.tokens:new_token_text", ADMIN,
        example="trainyard tokens create --name ci --scope run --days 90",
        local="It prints a secret, which is written nowhere.",
    ),
    "tokens list": Operation(
        "The tokens of the API: name, scope, tenant, when they expire.",
        NOTHING, "callers.tokens:list_tokens", "callers.tokens:tokens_text", ADMIN,
        route="GET /api/v1/tokens",
    ),
    "tokens revoke": Operation(
        "Revoke a token, at once, also in a service that is running.",
        "callers.tokens:RevokeTokenInput", "callers.tokens:revoke_token", "callers.tokens:revoked_text", ADMIN,
        route="DELETE /api/v1/tokens/{name}",
    ),
    "audit list": Operation(
        "What was changed, by whom, through what, and how it ended; the newest first.",
        "callers.audit:AuditInput", "callers.audit:list_audit", "callers.tokens:audit_text", ADMIN,
        route="GET /api/v1/audit",
    ),
    "audit verify": Operation(
        "Check that no line of the audit log was changed or is missing.",
        NOTHING, "callers.audit:verify_audit", "callers.tokens:audit_check_text", ADMIN,
        route="GET /api/v1/audit/verify",
    ),
}  # fmt: skip


API = "/api/v1"


def route_of(name: str) -> tuple[str, str]:
    """The method and the path of an operation in the REST API, such as `("GET", "/api/v1/jobs/{job}")`."""
    given = OPERATIONS[name].route or f"POST {API}/{name.replace(' ', '/')}"
    method, _, path = given.partition(" ")
    return method, path


GROUPS: dict[str, str] = {word: entry.line for word, entry in WORDS.items() if word not in OPERATIONS}
"""First word of operations -> what they are about, for words that are not an operation themselves."""
