"""Every verb of the product, once: name -> function, what it takes and what it gives. The command line loops over this.

An operation takes a pydantic model and a `Context`, gives a pydantic model, and raises `TrainyardError`. It prints
nothing: progress goes through `Context.say`. Prefect and torch are imported only by the operations that need them.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainyard.api import planning, services, stack
from trainyard.api.records import REFRESH_TAG, RunResult
from trainyard.api.verbs import (
    access,
    backends,
    conversion,
    demo,
    doctor,
    graph,
    jobs,
    night,
    proof,
    renderers,
    waiting,
)
from trainyard.compute.leftovers import sweep_leftovers
from trainyard.compute.orphans import sweep
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.night.report import NightReport
from trainyard.serve import embedded
from trainyard.serve.targets import local
from trainyard.settings import Settings
from trainyard.spec.axes import Method, Stage
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.auth_string import auth_file
from trainyard.stores.models import SHIPPED_STARTER, resolve_model

Event = dict[str, Any]
RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def ignore(_told: Any) -> None:
    """Default of `on_progress` and `tell`."""


@dataclass(frozen=True)
class Context:
    """What an operation may use of its caller."""

    settings: Settings
    say: Callable[[str], None] = field(default=print)
    on_progress: Callable[[Event], None] = ignore
    tell: Callable[[BaseModel], None] = ignore
    """Takes the parts of a result that are handed out one by one (`jobs logs --follow`)."""


class Model(BaseModel):
    """A misspelt field is an error here too."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Model):
    """An operation without arguments."""


# check


class CheckInput(Model):
    files: tuple[Path, ...] = Field(min_length=1)


class ReasonRow(Model):
    """One reason, as `trainyard.errors.Reason`."""

    code: str
    node: str | None
    field: str
    because: str
    instead: str
    line: str


class FileCheck(Model):
    file: str
    ok: bool
    digest: str | None = None
    nodes: int = 0
    reasons: tuple[ReasonRow, ...] = ()


class CheckOutput(Model):
    files: tuple[FileCheck, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(one.ok for one in self.files) else Refused.exit_code


def check(given: CheckInput, context: Context) -> CheckOutput:
    """Say whether chain files would run, with all reasons at once; nothing is started."""
    return CheckOutput(files=tuple(check_file(path, context.settings) for path in given.files))


def check_file(path: Path, settings: Settings) -> FileCheck:
    try:
        chain = planning.resolved(planning.asked(str(path)).spec, settings)
        if reasons := planning.examine(chain, settings):
            raise Refused(reasons)
    except Refused as refused:
        rows = tuple(ReasonRow(**reason.as_dict(), line=reason.line()) for reason in refused.reasons)
        return FileCheck(file=str(path), ok=False, reasons=rows)
    except InvalidInput as error:
        row = ReasonRow(
            code=error.code, node=None, field="", because=f"{error.what} {error.why}".strip(), instead=error.do,
            line=str(error),
        )  # fmt: skip
        return FileCheck(file=str(path), ok=False, reasons=(row,))
    return FileCheck(file=str(path), ok=True, digest=chain.digest, nodes=len(chain.nodes))


# plan and run


class PlanInput(Model):
    target: str
    """A template's name or a chain file."""
    parameters: dict[str, Any] = {}
    preset: str | None = None


def plan(given: PlanInput, context: Context) -> planning.Plan:
    """Show what a run would do: resolved config, order, reused results, sizes, times; nothing is started."""
    return planning.plan(planning.asked(given.target, given.parameters, given.preset).spec, context.settings)


class RunInput(Model):
    target: str
    parameters: dict[str, Any] = {}
    preset: str | None = None
    watch: bool = False
    refresh: bool = False
    tags: tuple[str, ...] = ()


def run(given: RunInput, context: Context) -> RunResult:
    """Start a template or a file, or continue a run by its id; with --watch, follow it to its end."""
    settings, since = context.settings, time.time()
    started = continued(given, settings) if RUN_ID.fullmatch(given.target) else begun(given, settings)
    context.say(f"run {started.name}: {started.url}")
    if not given.watch:
        return started
    runs = load("trainyard.api.runs", settings)
    result: RunResult = runs.watch(started.run_id, settings=settings, on_progress=context.on_progress, since=since)
    return result


def begun(given: RunInput, settings: Settings) -> RunResult:
    """A new run, checked here first: a refusal is told at once and with all its reasons."""
    wanted = planning.located(planning.asked(given.target, given.parameters, given.preset), settings)
    chain = planning.resolved(wanted.spec, settings)
    waits = waiting.refuse_or_wait(chain, settings, is_job=wanted.deployment == planning.JOB_DEPLOYMENT)
    tags = (*given.tags, *([REFRESH_TAG] if given.refresh else []))
    runs, called = load("trainyard.api.runs", settings), f"{chain.name}-{chain.digest[:8]}"
    started: RunResult = runs.start_run(
        wanted.deployment, wanted.parameters, settings=settings, tags=tags, waits=waits, called=called
    )
    return started


def continued(given: RunInput, settings: Settings) -> RunResult:
    """An ended run, started again."""
    if given.parameters or given.preset or given.refresh or given.tags:
        raise InvalidInput(
            "A run that is continued takes no parameters, preset, tags or refresh.",
            why="It goes on with those that it was started with.",
            do="Start a new run of the template or file.",
            code="E-PARAMETER",
        )
    started: RunResult = load("trainyard.api.runs", settings).continue_run(given.target)
    return started


# the stack


def up(given: access.UpInput, context: Context) -> access.UpOutput:
    """Start, or find running, the Prefect server, the pool, the deployments, a worker and the embedded model server."""
    settings = context.settings
    with services.exclusive(settings, context.say):
        attached = stack.attached(settings, auth=not given.no_auth)
        url = attached or stack.start_server(settings, context.say, auth=not given.no_auth).url
        asks = not attached and stack.admits(settings, url, context.say, auth=not given.no_auth)
        if not stack.bootstrapped(settings, url):
            bootstrap(settings, url, context.say)
        worker = stack.running_worker(settings, url) or begin_work(settings, url, context.say)
        watchdog = stack.start_watchdog(settings, url)
        embedded = start_embedded(settings, context.say)
        for line in local.restore(settings):
            context.say(line)
    return access.UpOutput(
        api_url=url,
        ui_url=url.removesuffix("/api"),
        own_server=attached is None,
        auth_file=auth_file(settings) if asks else None,
        worker_pid=worker.pid,
        watchdog_pid=watchdog.pid,
        embedded_url=embedded,
        home=str(settings.home),
    )


def begin_work(settings: Settings, url: str, say: Callable[[str], None]) -> services.Service:
    """Start a worker, after what the one before it left behind is ended and its dead runs are marked as crashed."""
    for line in sweep_leftovers(settings.home):
        say(line)
    for pid in sweep(settings.home):
        say(f"ended the process {pid}, which a run had left behind")
    if (settings.services / "worker.log").is_file():
        runs = load("trainyard.api.runs", settings)
        for run_id in runs.crash_dead_runs(settings, stack.worker_name(settings)):
            say(f"the run {run_id} had died with its worker; `trainyard jobs resume {run_id} --watch` continues it")
        for device in runs.free_unheld_slots(settings) if stack.foreign_api_url(settings) is None else ():
            say(f"freed the slot of device {device}, which a run that is gone had kept")
    return stack.start_worker(settings, url, say)


def bootstrap(settings: Settings, url: str, say: Callable[[str], None]) -> None:
    say("writing the work pool, the device limit, the automation and the deployments")
    os.environ.update(stack.prefect_environment(settings, url))
    load("trainyard.api.runs", settings).bootstrap(settings)
    load("trainyard.api.runs.nights", settings).ensure_night_automations()
    stack.deploy_all(settings, url)
    stack.mark_bootstrapped(settings, url)


def start_embedded(settings: Settings, say: Callable[[str], None]) -> str | None:
    """The address of the embedded model server; None while there is no base model on this machine to serve."""
    url = embedded.running(settings)
    if url is not None:
        return url
    try:
        resolve_model(settings.default_base_model, settings)
    except NotFound as missing:
        say(f"no embedded model server yet: {missing.what} {missing.do}")
        return None
    say("starting the embedded model server")
    url = embedded.start(settings, settings.default_base_model, threads=settings.threads)
    for line in embedded.restore_live(settings, url):
        say(line)
    return url


def down(_: Nothing, context: Context) -> access.DownOutput:
    """End the processes that `up` started on this home, the worker first so that its runs can save."""
    settings = context.settings
    with services.exclusive(settings):
        stopped = [name for name in ("worker", "watchdog") if services.stop(settings, name)]
        stopped += ["embedded"] if embedded.stop(settings) else []
        stopped += local.end_all(settings)
        stopped += [name for name in ("server",) if services.stop(settings, name)]
    return access.DownOutput(stopped=tuple(stopped))


def env(_: Nothing, context: Context) -> access.EnvOutput:
    """The variables that make `prefect` commands talk to this stack."""
    url = stack.api_url(context.settings)
    if url is None:
        raise stack.no_server(context.settings)
    return access.EnvOutput(variables=stack.prefect_environment(context.settings, url))


def examine(_: Nothing, context: Context) -> doctor.Diagnosis:
    """Look at versions, server, worker, models, disk and devices, and say what to do about what is wrong."""
    return doctor.examine(context.settings)


def run_demo(_: Nothing, context: Context) -> demo.DemoResult:
    """Documents in, a served adapter out: the qa-pipeline on the sample handbook, with a control for comparison."""
    os.chdir(stack.checkout())
    stack_is = up(access.UpInput(), context)
    if stack_is.auth_file:
        context.say(f"log in at {stack_is.ui_url} with the text in {stack_is.auth_file}")
    given = RunInput(target=demo.TEMPLATE, parameters=demo.PARAMETERS, watch=True, tags=("demo",))
    result, seconds = demo.timed(lambda: run(given, context))
    assert stack_is.embedded_url is not None, "the starter model comes with the package"
    return demo.summarize(result, ui_url=stack_is.ui_url, model_url=stack_is.embedded_url, seconds=seconds)


# jobs


def jobs_create(given: jobs.CreateInput, context: Context) -> RunResult:
    """Start one training on one data set, from a file or from parameters."""
    return run(RunInput(target=planning.JOB, parameters=jobs.body(given), watch=given.watch), context)


def jobs_list(given: jobs.JobsInput, context: Context) -> jobs.JobList:
    """The newest jobs, their states and how far they are."""
    return jobs.listed(the_runs(context), given, context.settings)


def jobs_show(given: jobs.JobInput, context: Context) -> jobs.JobDetail:
    """One job: state, trainers, checkpoints, nodes and what it was started with."""
    return jobs.shown(the_runs(context), given.job, context.settings)


def jobs_logs(given: jobs.LogsInput, context: Context) -> jobs.JobLog:
    """A job's log, with what its trainers printed; with --follow, as it comes."""
    return jobs.logs(the_runs(context), given, context.settings, context.tell)


def jobs_metrics(given: jobs.MetricsInput, context: Context) -> jobs.JobMetrics:
    """Loss and learning rate of every step of a job."""
    return jobs.metrics(the_runs(context), given, context.settings)


def jobs_pause(given: jobs.StopInput, context: Context) -> jobs.Job:
    """Pause a job: its training saves at the next step, its process ends and its device is free."""
    return jobs.stopped(the_runs(context), given, context.settings, context.say, "pause")


def jobs_resume(given: jobs.ResumeInput, context: Context) -> BaseModel:
    """Continue a job that is paused or has ended without a result, from its newest valid checkpoint."""
    since = time.time()
    runs = the_runs(context)
    job = jobs.resumed(runs, given, context.settings)
    if not given.watch:
        return job
    watched: RunResult = runs.watch(job.id, settings=context.settings, on_progress=context.on_progress, since=since)
    return watched


def jobs_cancel(given: jobs.StopInput, context: Context) -> jobs.Job:
    """End a job; its training saves first, so that it can be resumed all the same."""
    return jobs.stopped(the_runs(context), given, context.settings, context.say, "cancel")


def the_runs(context: Context) -> Any:
    return load("trainyard.api.runs", context.settings)


# adapters and the starter


class AdaptersInput(Model):
    tenant: str | None = None


class AdapterName(Model):
    name: str
    """`<tenant>/<role>` or `<tenant>/<role>/v<N>`."""


class Rows(Model):
    rows: tuple[dict[str, Any], ...]


class Record(Model):
    record: dict[str, Any]


def adapters_list(given: AdaptersInput, context: Context) -> Rows:
    """Every adapter version, the live one of each role marked."""
    registry = AdapterRegistry(context.settings.adapters)
    return Rows(rows=tuple(adapter_row(registry, version) for version in registry.list(given.tenant)))


def adapter_row(registry: AdapterRegistry, version: AdapterVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "live": registry.live(version.tenant, version.role).version == version.version,
        "kind": version.kind,
        "base": version.facts.get("base_model", ""),
        "evaluated": version.facts.get("evaluated", False),
        "created": datetime.fromtimestamp(version.created, UTC).isoformat(timespec="seconds"),
        "sha256": version.sha256[:12],
    }


def adapters_show(given: AdapterName, context: Context) -> Record:
    """One adapter version's manifest; without a version, the live one's."""
    registry = AdapterRegistry(context.settings.adapters)
    version = registry.show(given.name)
    return Record(record={**version.model_dump(mode="json"), "path": str(registry.path(version))})


def starter_build(_: Nothing, context: Context) -> Record:
    """Train the starter model again, from the recipe and corpus of the shipped weights, and compare the two."""
    source = load("trainyard.train.starter.build").build_starter(
        context.settings.home,
        report=lambda fraction, text: context.on_progress(
            {"node": "starter", "event": "progress", "fraction": fraction, "text": text}
        ),
    )
    return Record(record={"name": source.name, "path": str(source.path), "sha256": source.sha256,
                          "parameters": source.parameters,
                          **load("trainyard.train.starter.build").compare(source.path, SHIPPED_STARTER)})  # fmt: skip


# renderers


class RenderersInput(Model):
    names: tuple[str, ...] = ()
    """Renderers, templates or .jinja files; none means all."""


def renderers_verify(given: RenderersInput, _context: Context) -> renderers.RendererTable:
    """Try the chat templates that are known, or a .jinja file: are turns kept, which tokens end an answer."""
    return renderers.verify(given.names)


# backends


def backends_table(given: backends.BackendsInput, context: Context) -> backends.BackendTable:
    """Show every trainer: version, import, device, why it is not available and what mends it."""
    return backends.backend_table(context.settings, imports=given.imports)


def backends_install(given: backends.InstallInput, context: Context) -> backends.BackendTable:
    """Make the environment of a trainer that cannot share ours; whole, or not at all."""
    return backends.install(given, context.settings, context.say)


def eject(given: backends.EjectInput, context: Context) -> backends.EjectOutput:
    """Write a training as a folder of its own: a plain script to edit and run by hand, its spec and its rows."""
    return backends.eject(given, context.settings)


# nights and corpora


def nightly_run(given: night.RunNightInput, context: Context) -> NightReport:
    """Carry out one night: documents into the graph, full corpora into adapters; what is done is not done twice."""
    return night.run_once(given, context.settings, context.say)


def nightly_simulate(given: night.SimulateInput, context: Context) -> night.Simulated:
    """Simulate nights in which everything goes wrong, and check that nothing is lost, doubled or half done."""
    context.say(f"seed {given.seed}" if given.campaign is None else f"campaign {given.campaign}")

    def progress(done: int) -> None:
        fraction = min(1.0, done / given.nights)
        context.on_progress({"node": "nights", "event": "progress", "fraction": fraction, "text": f"{done:,}"})

    return night.simulated(given, progress)


def nightly_worker(given: night.WorkerInput, context: Context) -> night.Worked:
    """Poll for markers and train them on this machine, until it is told to stop."""
    return night.worker(given, context.settings, context.say)


def nightly_status(given: night.NightInput, context: Context) -> night.NightStatus:
    """The last nights and the state of every marker."""
    return night.status(given, context.settings)


def corpus_engineering(given: night.EngineeringInput, context: Context) -> night.Added:
    """Add the commits of a repository to a corpus: diff, message, review brief."""
    return night.engineering(given, context.settings)


def corpus_apprenticeship(given: night.AddInput, context: Context) -> night.Added:
    """Add corrections to a corpus: what the model said (shadow), and what a person stands for (verdict)."""
    return night.apprenticeship(given, context.settings)


def corpus_status(given: night.NightInput, context: Context) -> night.CorpusStatus:
    """How many valid tuples each corpus holds, and how many make a training."""
    return night.corpus_status(given, context.settings)


# prove-resume


class ProveInput(Model):
    everything: bool = False
    stages: tuple[Stage, ...] = ()
    methods: tuple[Method, ...] = ()
    jobs: int = Field(2, ge=1, le=64)


def prove_resume(given: ProveInput, context: Context) -> proof.Proof:
    """Show that a training that was stopped or killed ends in the same bits as one that was not."""
    return proof.prove(*proof.chosen(given.stages, given.methods, given.everything), given.jobs, context.say)


# graph


def graph_query(given: graph.QueryInput, context: Context) -> graph.QueryRows:
    """Rows of one reading Cypher statement; values are given as parameters."""
    return graph.query(given, context.settings)


def graph_stats(given: graph.GraphInput, context: Context) -> graph.GraphCounts:
    """Count the documents, entities and relations of the knowledge graph."""
    return graph.stats(given, context.settings)


def graph_export(given: graph.ExportInput, context: Context) -> graph.Exported:
    """Write the knowledge graph as JSON lines, in the same order every time."""
    return graph.export(given, context.settings)


def serve(given: graph.ServeInput, context: Context) -> graph.Served:
    """Answer over HTTP in one role until stopped; the role graph takes what nights write."""
    return graph.serve(given, context.settings, context.say)


@dataclass(frozen=True)
class Operation:
    """One verb: what it takes, what it gives, and the function."""

    takes: type[BaseModel]
    gives: type[BaseModel]
    do: Callable[[Any, Context], BaseModel]

    @property
    def summary(self) -> str:
        return (self.do.__doc__ or "").splitlines()[0]


OPERATIONS: dict[str, Operation] = {
    "check": Operation(CheckInput, CheckOutput, check),
    "plan": Operation(PlanInput, planning.Plan, plan),
    "run": Operation(RunInput, RunResult, run),
    "up": Operation(access.UpInput, access.UpOutput, up),
    "down": Operation(Nothing, access.DownOutput, down),
    "demo": Operation(Nothing, demo.DemoResult, run_demo),
    "env": Operation(Nothing, access.EnvOutput, env),
    "doctor": Operation(Nothing, doctor.Diagnosis, examine),
    "jobs create": Operation(jobs.CreateInput, RunResult, jobs_create),
    "jobs list": Operation(jobs.JobsInput, jobs.JobList, jobs_list),
    "jobs show": Operation(jobs.JobInput, jobs.JobDetail, jobs_show),
    "jobs logs": Operation(jobs.LogsInput, jobs.JobLog, jobs_logs),
    "jobs metrics": Operation(jobs.MetricsInput, jobs.JobMetrics, jobs_metrics),
    "jobs pause": Operation(jobs.StopInput, jobs.Job, jobs_pause),
    "jobs resume": Operation(jobs.ResumeInput, jobs.Job, jobs_resume),
    "jobs cancel": Operation(jobs.StopInput, jobs.Job, jobs_cancel),
    "adapters list": Operation(AdaptersInput, Rows, adapters_list),
    "adapters show": Operation(AdapterName, Record, adapters_show),
    "adapters convert": Operation(conversion.ConvertInput, conversion.Converted, conversion.adapters_convert),
    "backends": Operation(backends.BackendsInput, backends.BackendTable, backends_table),
    "backends install": Operation(backends.InstallInput, backends.BackendTable, backends_install),
    "eject": Operation(backends.EjectInput, backends.EjectOutput, eject),
    "graph query": Operation(graph.QueryInput, graph.QueryRows, graph_query),
    "graph stats": Operation(graph.GraphInput, graph.GraphCounts, graph_stats),
    "graph export": Operation(graph.ExportInput, graph.Exported, graph_export),
    "serve": Operation(graph.ServeInput, graph.Served, serve),
    "nightly run": Operation(night.RunNightInput, NightReport, nightly_run),
    "nightly simulate": Operation(night.SimulateInput, night.Simulated, nightly_simulate),
    "nightly worker": Operation(night.WorkerInput, night.Worked, nightly_worker),
    "nightly status": Operation(night.NightInput, night.NightStatus, nightly_status),
    "corpus engineering": Operation(night.EngineeringInput, night.Added, corpus_engineering),
    "corpus apprenticeship": Operation(night.AddInput, night.Added, corpus_apprenticeship),
    "corpus status": Operation(night.NightInput, night.CorpusStatus, corpus_status),
    "prove-resume": Operation(ProveInput, proof.Proof, prove_resume),
    "renderers verify": Operation(RenderersInput, renderers.RendererTable, renderers_verify),
    "starter build": Operation(Nothing, Record, starter_build),
}


def load(module: str, settings: Settings | None = None) -> Any:
    """Import a heavy module when its operation runs. With settings, Prefect's variables are set before its import."""
    if settings is not None:
        url = stack.needs_api_url(settings)
        os.environ.update(stack.few_certificates(settings, url) | stack.prefect_environment(settings, url))
    return importlib.import_module(module)
