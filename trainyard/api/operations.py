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
from trainyard.api.verbs import demo, doctor, proof, renderers
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused
from trainyard.serve import embedded
from trainyard.settings import Settings
from trainyard.spec.axes import Method, Stage
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.models import resolve_model

Event = dict[str, Any]
RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def ignore(_event: Event) -> None:
    """Default of `on_progress`."""


@dataclass(frozen=True)
class Context:
    """What an operation may use of its caller."""

    settings: Settings
    say: Callable[[str], None] = field(default=print)
    on_progress: Callable[[Event], None] = ignore


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
        if reasons := renderers.template_reasons(chain, settings):
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
    wanted = planning.asked(given.target, given.parameters, given.preset)
    planning.refuse_here(planning.resolved(wanted.spec, settings), settings)
    tags = (*given.tags, *([REFRESH_TAG] if given.refresh else []))
    runs = load("trainyard.api.runs", settings)
    started: RunResult = runs.start_run(wanted.deployment, wanted.parameters, settings=settings, tags=tags)
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


class UpOutput(Model):
    api_url: str
    ui_url: str
    own_server: bool
    worker_pid: int
    embedded_url: str | None
    home: str


def up(_: Nothing, context: Context) -> UpOutput:
    """Start, or find running, the Prefect server, the pool, the deployments, a worker and the embedded model server."""
    settings = context.settings
    with services.exclusive(settings):
        attached = stack.foreign_api_url(settings)
        if attached and not stack.healthy(attached, timeout_s=10):
            raise stack.unreachable(attached)
        url = attached or stack.start_server(settings, context.say).url
        if not stack.bootstrapped(settings, url):
            bootstrap(settings, url, context.say)
        worker = stack.running_worker(settings, url) or begin_work(settings, url, context.say)
        embedded = start_embedded(settings, context.say)
    return UpOutput(
        api_url=url,
        ui_url=url.removesuffix("/api"),
        own_server=attached is None,
        worker_pid=worker.pid,
        embedded_url=embedded,
        home=str(settings.home),
    )


def begin_work(settings: Settings, url: str, say: Callable[[str], None]) -> services.Service:
    """Start a worker, after the runs that died with the one before it are marked as crashed."""
    if (settings.services / "worker.log").is_file():
        dead = load("trainyard.api.runs", settings).crash_dead_runs(settings, stack.worker_name(settings))
        for run_id in dead:
            say(f"the run {run_id} had died with its worker; `trainyard run {run_id} --watch` continues it")
    return stack.start_worker(settings, url, say)


def bootstrap(settings: Settings, url: str, say: Callable[[str], None]) -> None:
    say("writing the work pool, the device limit, the automation and the deployments")
    os.environ.update(stack.prefect_environment(settings, url))
    load("trainyard.api.runs", settings).bootstrap(settings)
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


def starter_is_built(settings: Settings) -> bool:
    """Whether there is a starter model, also one of an older corpus: pages that were edited do not make it unfit."""
    try:
        resolve_model("starter", settings)
    except NotFound:
        return False
    return True


class DownOutput(Model):
    stopped: tuple[str, ...]


def down(_: Nothing, context: Context) -> DownOutput:
    """End the processes that `up` started on this home, the worker first so that its runs can save."""
    settings = context.settings
    with services.exclusive(settings):
        stopped = [name for name in ("worker",) if services.stop(settings, name)]
        stopped += ["embedded"] if embedded.stop(settings) else []
        stopped += [name for name in ("server",) if services.stop(settings, name)]
    return DownOutput(stopped=tuple(stopped))


class EnvOutput(Model):
    variables: dict[str, str]


def env(_: Nothing, context: Context) -> EnvOutput:
    """The variables that make `prefect` commands talk to this stack."""
    url = stack.api_url(context.settings)
    if url is None:
        raise Conflict("No Prefect server is running.", do="Run `trainyard up`.", code="E-NO-SERVER")
    return EnvOutput(variables=stack.prefect_environment(context.settings, url))


def examine(_: Nothing, context: Context) -> doctor.Diagnosis:
    """Look at versions, server, worker, models, disk and devices, and say what to do about what is wrong."""
    return doctor.examine(context.settings)


def run_demo(_: Nothing, context: Context) -> demo.DemoResult:
    """Documents in, a served adapter out: the qa-pipeline on this project's manual, with a control beside it."""
    os.chdir(stack.checkout())
    if not starter_is_built(context.settings):
        starter_build(Nothing(), context)
    stack_is = up(Nothing(), context)
    given = RunInput(target=demo.TEMPLATE, parameters=demo.PARAMETERS, watch=True, tags=("demo",))
    result, seconds = demo.timed(lambda: run(given, context))
    assert stack_is.embedded_url is not None, "the starter model was built two lines above"
    return demo.summarize(result, ui_url=stack_is.ui_url, model_url=stack_is.embedded_url, seconds=seconds)


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
    """Build the starter model, or find it built."""
    build = load("trainyard.train.starter").build_starter
    source = build(
        context.settings.home,
        report=lambda fraction, text: context.on_progress(
            {"node": "starter", "event": "progress", "fraction": fraction, "text": text}
        ),
    )
    return Record(record={"name": source.name, "path": str(source.path), "sha256": source.sha256,
                          "parameters": source.parameters})  # fmt: skip


# renderers


class RenderersInput(Model):
    names: tuple[str, ...] = ()
    """Renderers, templates or .jinja files; none means all."""


def renderers_verify(given: RenderersInput, _context: Context) -> renderers.RendererTable:
    """Try the chat templates that are known, or a .jinja file: are turns kept, which tokens end an answer."""
    return renderers.verify(given.names)


# prove-resume


class ProveInput(Model):
    everything: bool = False
    stages: tuple[Stage, ...] = ()
    methods: tuple[Method, ...] = ()
    jobs: int = Field(2, ge=1, le=64)


def prove_resume(given: ProveInput, context: Context) -> proof.Proof:
    """Show that a training that was stopped or killed ends in the same bits as one that was not."""
    return proof.prove(*proof.chosen(given.stages, given.methods, given.everything), given.jobs, context.say)


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
    "up": Operation(Nothing, UpOutput, up),
    "down": Operation(Nothing, DownOutput, down),
    "demo": Operation(Nothing, demo.DemoResult, run_demo),
    "env": Operation(Nothing, EnvOutput, env),
    "doctor": Operation(Nothing, doctor.Diagnosis, examine),
    "adapters list": Operation(AdaptersInput, Rows, adapters_list),
    "adapters show": Operation(AdapterName, Record, adapters_show),
    "prove-resume": Operation(ProveInput, proof.Proof, prove_resume),
    "renderers verify": Operation(RenderersInput, renderers.RendererTable, renderers_verify),
    "starter build": Operation(Nothing, Record, starter_build),
}


def load(module: str, settings: Settings | None = None) -> Any:
    """Import a heavy module when its operation runs. With settings, Prefect's variables are set before its import."""
    if settings is not None:
        os.environ.update(stack.prefect_environment(settings, stack.needs_api_url(settings)))
    return importlib.import_module(module)
