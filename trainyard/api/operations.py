"""Every verb of the product, once. The command line is a loop over this table, and so is every other surface.

A row names its request, its response, its implementation and its renderer by dotted path, and `load` (`loading.py`)
imports one of them when it is needed: importing this module imports no other module of Trainyard.

An implementation is `do(request, context) -> response`. It raises `TrainyardError` and prints nothing: progress goes
through `Context.say`. A new operation is a request in `api/requests/`, a function in `api/verbs/`, a renderer in
`api/terminal/` and a row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """What a caller has to be allowed to do: the scope that a token of the API needs. Each contains those before it."""

    READ = "read"
    """Look at something; nothing is started or changed."""
    WRITE = "write"
    """Start work, or change what a tenant has: runs, jobs, adapters, corpora, nights, files that are written."""
    ADMIN = "admin"
    """Change the machine: its services, its trainers and its base models; or see the string that opens its server."""


@dataclass(frozen=True)
class Operation:
    """One verb. Everything but the summary is a dotted path, `module:name`."""

    summary: str
    """One sentence: the help of the command, and the line in the manual."""
    request: str
    response: str
    implementation: str
    renderer: str
    """Response -> text for people."""
    scope: Scope
    part_renderer: str = ""
    """Part -> text, for a response that is streamed part by part (`Context.on_part`)."""
    example: str = ""
    """How it is used in a shell, where the command alone does not show it."""


READ, WRITE, ADMIN = Scope
NOTHING = "trainyard.api.requests.base:Nothing"

OPERATIONS: dict[str, Operation] = {
    "up": Operation(
        "Start, or find running, the Prefect server, its pool and deployments, a worker and the embedded model server.",
        "trainyard.api.requests.stack:UpInput", "trainyard.api.verbs.stack:UpOutput",
        "trainyard.api.verbs.stack:up", "trainyard.api.terminal.stack:up_text", ADMIN,
    ),
    "down": Operation(
        "End the processes that `up` started on this home, the worker first so that its runs can save.",
        NOTHING, "trainyard.api.verbs.stack:DownOutput",
        "trainyard.api.verbs.stack:down", "trainyard.api.terminal.stack:down_text", ADMIN,
    ),
    "demo": Operation(
        "Documents in, a served adapter out: the qa-pipeline on the sample handbook, with a control for comparison.",
        NOTHING, "trainyard.api.verbs.demo:DemoResult",
        "trainyard.api.verbs.demo:run_demo", "trainyard.api.terminal.demo:demo_text", ADMIN,
    ),
    "env": Operation(
        "The variables that make `prefect` commands talk to this stack.",
        NOTHING, "trainyard.api.verbs.stack:EnvOutput",
        "trainyard.api.verbs.stack:env", "trainyard.api.terminal.stack:env_text", ADMIN,
        example='eval "$(trainyard env)"',
    ),
    "doctor": Operation(
        "Look at versions, server, worker, models, disk and devices, and say what to do about what is wrong.",
        NOTHING, "trainyard.api.verbs.doctor:Diagnosis",
        "trainyard.api.verbs.doctor:examine", "trainyard.api.terminal.stack:doctor_text", READ,
    ),
    "migrate": Operation(
        "Bring what earlier versions wrote below TRAINYARD_HOME into the form of this one.",
        "trainyard.api.requests.stack:MigrateInput", "trainyard.api.verbs.stack:Migration",
        "trainyard.api.verbs.stack:migrate", "trainyard.api.terminal.stack:migration_text", WRITE,
    ),
    "check": Operation(
        "Say whether chain files would run, with all reasons at once; nothing is started.",
        "trainyard.api.requests.chains:CheckInput", "trainyard.api.verbs.chains.check:CheckOutput",
        "trainyard.api.verbs.chains.check:check", "trainyard.api.terminal.chains:check_text", READ,
    ),
    "plan": Operation(
        "Show what a run would do: resolved config, order, reused results, sizes, times; nothing is started.",
        "trainyard.api.requests.chains:PlanInput", "trainyard.api.planning:ChainPlan",
        "trainyard.api.verbs.chains.plan:plan", "trainyard.api.terminal.chains:plan_text", READ,
    ),
    "run": Operation(
        "Start a template or a file, or continue a run by its id; with --watch, follow it to its end.",
        "trainyard.api.requests.chains:RunInput", "trainyard.api.records:RunResult",
        "trainyard.api.verbs.chains.run:run", "trainyard.api.terminal.chains:run_text", WRITE,
    ),
    "prove-resume": Operation(
        "Show that a training that was stopped or killed ends in the same bits as one that was not.",
        "trainyard.api.requests.trainers:ProveInput", "trainyard.api.verbs.proof:Proof",
        "trainyard.api.verbs.proof:prove_resume", "trainyard.api.terminal.trainers:proof_text", WRITE,
    ),
    "serve": Operation(
        "Answer over HTTP in one role until stopped; the role graph takes what nights write.",
        "trainyard.api.requests.graph:ServeInput", "trainyard.api.verbs.graph:Served",
        "trainyard.api.verbs.graph:serve", "trainyard.api.terminal.text:json_text", ADMIN,
    ),
    "eject": Operation(
        "Write a training as a folder of its own: a plain script to edit and run by hand, its spec and its rows.",
        "trainyard.api.requests.chains:EjectInput", "trainyard.api.verbs.chains.eject:EjectOutput",
        "trainyard.api.verbs.chains.eject:eject", "trainyard.api.terminal.chains:eject_text", WRITE,
    ),
    "adapters list": Operation(
        "Every adapter version, the live one of each role marked.",
        "trainyard.api.requests.adapters:AdaptersInput", "trainyard.api.verbs.adapters:AdapterRows",
        "trainyard.api.verbs.adapters:list_adapters", "trainyard.api.terminal.adapters:adapters_text", READ,
    ),
    "adapters show": Operation(
        "One adapter version's manifest; without a version, the live one's.",
        "trainyard.api.requests.adapters:AdapterName", "trainyard.api.verbs.adapters:AdapterRecord",
        "trainyard.api.verbs.adapters:show_adapter", "trainyard.api.terminal.adapters:record_text", READ,
    ),
    "adapters convert": Operation(
        "Write an adapter in the layout of PEFT, mlx-lm or llama.cpp (gguf), without changing a bit of its weights.",
        "trainyard.api.requests.adapters:ConvertInput", "trainyard.api.verbs.adapters:Converted",
        "trainyard.api.verbs.adapters:convert_adapter", "trainyard.api.terminal.adapters:converted_text", WRITE,
    ),
    "backends": Operation(
        "Show every trainer: version, import, device, why it is not available and what fixes it.",
        "trainyard.api.requests.trainers:BackendsInput", "trainyard.api.verbs.backends:BackendTable",
        "trainyard.api.verbs.backends:show_backends", "trainyard.api.terminal.trainers:backends_text", READ,
    ),
    "backends install": Operation(
        "Make the environment of a trainer that cannot share ours; whole, or not at all.",
        "trainyard.api.requests.trainers:InstallInput", "trainyard.api.verbs.backends:BackendTable",
        "trainyard.api.verbs.backends:install_backends", "trainyard.api.terminal.trainers:backends_text", ADMIN,
    ),
    "jobs create": Operation(
        "Start one training on one data set, from a file or from parameters.",
        "trainyard.api.requests.jobs:CreateInput", "trainyard.api.records:RunResult",
        "trainyard.api.verbs.jobs:create_job", "trainyard.api.terminal.chains:run_text", WRITE,
    ),
    "jobs list": Operation(
        "The newest jobs, their states and how far they are.",
        "trainyard.api.requests.jobs:JobsInput", "trainyard.api.verbs.jobs:JobList",
        "trainyard.api.verbs.jobs:list_jobs", "trainyard.api.terminal.jobs:jobs_text", READ,
    ),
    "jobs show": Operation(
        "One job: state, trainers, checkpoints, nodes and what it was started with.",
        "trainyard.api.requests.jobs:JobInput", "trainyard.api.verbs.jobs:JobDetail",
        "trainyard.api.verbs.jobs:show_job", "trainyard.api.terminal.jobs:job_detail_text", READ,
    ),
    "jobs logs": Operation(
        "A job's log, with what its trainers printed; with --follow, as it comes.",
        "trainyard.api.requests.jobs:LogsInput", "trainyard.api.verbs.jobs:JobLog",
        "trainyard.api.verbs.jobs:show_logs", "trainyard.api.terminal.jobs:log_text", READ,
        part_renderer="trainyard.api.terminal.jobs:log_line_text",
    ),
    "jobs metrics": Operation(
        "Loss and learning rate of every step of a job.",
        "trainyard.api.requests.jobs:MetricsInput", "trainyard.api.verbs.jobs:JobMetrics",
        "trainyard.api.verbs.jobs:show_metrics", "trainyard.api.terminal.jobs:metrics_text", READ,
    ),
    "jobs pause": Operation(
        "Pause a job: its training saves at the next step, its process ends and its device is free.",
        "trainyard.api.requests.jobs:StopInput", "trainyard.api.verbs.jobs:Job",
        "trainyard.api.verbs.jobs:pause_job", "trainyard.api.terminal.jobs:job_text", WRITE,
    ),
    "jobs resume": Operation(
        "Continue a job that is paused or has ended without a result, from its newest valid checkpoint.",
        "trainyard.api.requests.jobs:ResumeInput", "trainyard.api.verbs.jobs:Resumed",
        "trainyard.api.verbs.jobs:resume_job", "trainyard.api.terminal.jobs:resumed_text", WRITE,
    ),
    "jobs cancel": Operation(
        "End a job; its training saves first, so that it can be resumed all the same.",
        "trainyard.api.requests.jobs:StopInput", "trainyard.api.verbs.jobs:Job",
        "trainyard.api.verbs.jobs:cancel_job", "trainyard.api.terminal.jobs:job_text", WRITE,
    ),
    "graph query": Operation(
        "Rows of one reading Cypher statement; values are given as parameters.",
        "trainyard.api.requests.graph:QueryInput", "trainyard.api.verbs.graph:QueryRows",
        "trainyard.api.verbs.graph:query_graph", "trainyard.api.terminal.graph:query_text", READ,
    ),
    "graph stats": Operation(
        "Count the documents, entities and relations of the knowledge graph.",
        "trainyard.api.requests.graph:GraphInput", "trainyard.api.verbs.graph:GraphCounts",
        "trainyard.api.verbs.graph:count_graph", "trainyard.api.terminal.graph:counts_text", READ,
    ),
    "graph export": Operation(
        "Write the knowledge graph as JSON lines, in the same order every time.",
        "trainyard.api.requests.graph:ExportInput", "trainyard.api.verbs.graph:Exported",
        "trainyard.api.verbs.graph:export_graph", "trainyard.api.terminal.graph:exported_text", WRITE,
    ),
    "nightly run": Operation(
        "Carry out one night: documents into the graph, full corpora into adapters; what is done is not done twice.",
        "trainyard.api.requests.nights:RunNightInput", "trainyard.night.report:NightReport",
        "trainyard.api.verbs.night:run_once", "trainyard.api.terminal.nights:night_text", WRITE,
    ),
    "nightly simulate": Operation(
        "Simulate nights in which everything goes wrong, and check that nothing is lost, doubled or half done.",
        "trainyard.api.requests.nights:SimulateInput", "trainyard.api.verbs.night:Simulated",
        "trainyard.api.verbs.night:simulate_nights", "trainyard.api.terminal.nights:simulated_text", WRITE,
    ),
    "nightly worker": Operation(
        "Poll for markers and train them on this machine, until it is stopped.",
        "trainyard.api.requests.nights:WorkerInput", "trainyard.api.verbs.night:Worked",
        "trainyard.api.verbs.night:run_worker", "trainyard.api.terminal.text:json_text", ADMIN,
    ),
    "nightly status": Operation(
        "The last nights and the state of every marker.",
        "trainyard.api.requests.nights:NightInput", "trainyard.api.verbs.night:NightStatus",
        "trainyard.api.verbs.night:show_nights", "trainyard.api.terminal.nights:status_text", READ,
    ),
    "corpus engineering": Operation(
        "Add the commits of a repository to a corpus: diff, message, review brief.",
        "trainyard.api.requests.nights:EngineeringInput", "trainyard.api.verbs.night:Added",
        "trainyard.api.verbs.night:add_commits", "trainyard.api.terminal.nights:added_text", WRITE,
    ),
    "corpus apprenticeship": Operation(
        "Add corrections to a corpus: what the model said (shadow), and what a person vouches for (verdict).",
        "trainyard.api.requests.nights:AddInput", "trainyard.api.verbs.night:Added",
        "trainyard.api.verbs.night:add_corrections", "trainyard.api.terminal.nights:added_text", WRITE,
    ),
    "corpus status": Operation(
        "How many valid tuples each corpus contains, and how many make a training.",
        "trainyard.api.requests.nights:NightInput", "trainyard.api.verbs.night:CorpusStatus",
        "trainyard.api.verbs.night:show_corpora", "trainyard.api.terminal.text:json_text", READ,
    ),
    "renderers verify": Operation(
        "Try the chat templates that are known, or a .jinja file: are turns kept, which tokens end an answer.",
        "trainyard.api.requests.trainers:RenderersInput", "trainyard.api.verbs.renderers:RendererTable",
        "trainyard.api.verbs.renderers:verify_renderers", "trainyard.api.terminal.trainers:renderers_text", READ,
    ),
    "starter build": Operation(
        "Train the starter model again, from the recipe and corpus of the shipped weights, and compare the two.",
        NOTHING, "trainyard.api.verbs.starter:StarterRecord",
        "trainyard.api.verbs.starter:build", "trainyard.api.terminal.adapters:record_text", ADMIN,
    ),
}  # fmt: skip

GROUPS: dict[str, str] = {
    "adapters": "The registry of deployed adapter versions.",
    "jobs": "Trainings: start, watch, pause, resume and cancel them.",
    "graph": "The knowledge graph that nights write.",
    "nightly": "The night: documents into the graph, work into adapters.",
    "corpus": "What people did, as tuples that nights train on.",
    "renderers": "How conversations become tokens.",
    "starter": "The small model that everything runs with by default.",
}
"""First word of operations -> what they are about, for words that are not an operation themselves."""
