"""Nights and corpora from outside: run one, simulate thousands, work for another machine, look at what there is.

Reports of the nights of a home, of each tenant: the list, and one whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain, count
from pathlib import Path

from pydantic import Field, ValidationError

from trainyard.app.artifacts.contents import damaged_error
from trainyard.app.context import Context
from trainyard.app.plan.refusals import list_refusals
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.responses import Response
from trainyard.app.run_folders import resolve_tenant
from trainyard.data.corpora import Corpora
from trainyard.data.limited.requests import CommitsRequest
from trainyard.data.limited.service import keep_service, reading_service
from trainyard.data.paths import data_roots
from trainyard.errors import InvalidInput, NotFound, Reason, Refused
from trainyard.locations import checkout, project_folder
from trainyard.night.deps import NightDeps
from trainyard.night.phases import BEGUN_FILE, is_done, night_folder, run_night
from trainyard.night.report import REPORT_FILE, NightReport, TrainingReport, next_steps, read_report
from trainyard.night.training import tenant_root
from trainyard.night.wiring import make_night_deps, open_markers, to_worker_config
from trainyard.night.worker import work
from trainyard.operations import nights as requests
from trainyard.operations.nights import NightNameInput, NightsInput
from trainyard.settings import Settings
from trainyard.spec.load.text import parse_text
from trainyard.spec.migrate import list_deprecated
from trainyard.spec.night import BucketSpec, NightConfig, check_name, locate_reasons, night_chain, read_night
from trainyard.stores.files import DISK, RealFiles
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.records import MarkerState
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.schema import read_versioned
from trainyard.testing.nights.injected_bugs import simulate

CONFIG_FILE = "nightly.yaml"
PRESETS = project_folder() / "deployments" / "presets"
NIGHTS_SHOWN = 10


class Simulated(Response):
    """Result of a simulation; its last line is the count of invariants."""

    seed: int
    nights: int
    attempts: int
    seconds: float
    inject: str | None
    violations: tuple[str, ...]
    failed: tuple[int, ...] = ()
    """The seeds of the campaigns with a violation."""
    last_line: str

    @property
    def exit_code(self) -> int:
        return 1 if self.violations else 0


class Worked(Response):
    trainings: tuple[TrainingReport, ...]


class NightStatus(Response):
    """The last nights, the markers, and what would be done tonight."""

    tenant: str
    nights: tuple[str, ...]
    markers: dict[str, str]


class Added(Response):
    bucket: str
    added: int
    there: int
    """Tuples that the bucket had already."""
    file: str
    commits: int | None = None
    """Commits of the branch: added + there + skipped."""
    skipped: dict[str, int] = Field(default_factory=dict)
    """Reason -> commits that gave no tuple."""


class BucketStatus(Response):
    bucket: str
    method: str
    role: str
    valid: int
    invalid: int
    duplicates: int
    threshold: int


class CorpusStatus(Response):
    buckets: tuple[BucketStatus, ...]


def load_night_config(config: Path | None, preset: str | None, context: Context) -> NightConfig:
    """Return the night's config of a file or preset; a relative preset name is one of deployments/presets.

    Raises `Refused` with all reasons, `NotFound` (`E-SPEC`).
    """
    path, settings = config, context.settings
    if preset is not None:
        path = PRESETS / f"{check_name(preset, 'preset')}.yaml"
    if path is None:
        path = settings.home / CONFIG_FILE
        if not path.is_file():
            return read_night({"tenant": settings.tenant})
    if not path.is_file():
        raise NotFound(f"There is no config {path}.", do="Give a YAML file, or leave it out.", code="E-SPEC")
    value = parse_text(path.read_bytes())
    if not isinstance(value, dict):
        raise InvalidInput(f"{path.name} is not a mapping.", do="Write keys like `tenant:`.", code="E-SPEC")
    for note in list_deprecated(value):
        context.say(f"{path.name}: {note}")
    return read_night({"tenant": settings.tenant, **value.get("config", value)})


def add_checkout_root(settings: Settings) -> Settings:
    """Return the same settings, with the checkout as a data root: the shipped sample streams lie there."""
    return settings.model_copy(update={"data_roots": (*settings.data_roots, checkout())})


def list_night_refusals(config: NightConfig, settings: Settings) -> list[Reason]:
    """Return the reasons why this machine cannot carry out a training of the night, from the function that a run
    asks.
    """
    specs = [resolve_chain(night_chain(config, method), settings) for method in config.methods]
    return locate_reasons(reason for spec in specs for reason in list_refusals(spec, settings))


def describe_night_refusals(config: NightConfig, settings: Settings) -> Callable[[], str]:
    """Return the same as the note of a night whose markers wait, looked up when the documents are read."""
    return lambda: "; ".join(reason.line() for reason in list_night_refusals(config, settings))


def run_once(request: requests.RunNightInput, context: Context) -> NightReport:
    """Return a night; where this machine cannot train with its settings, the markers wait and the report says why."""
    settings = add_checkout_root(context.settings)
    config = load_night_config(request.config, request.preset, context)
    world = make_night_deps(config, settings, say=context.say, unfit=describe_night_refusals(config, settings))
    run = request.run or config.window.find_date(world.clock.now())
    with keep_service():
        report = run_night(config, world, choose_new_name(world, run) if request.again else run)
    context.say(report.headline)
    return report


def choose_new_name(world: NightDeps, run: str) -> str:
    """Return the first of NAME, NAME-2, NAME-3, … that is not done; a night that was killed keeps its name."""
    names = chain([run], (f"{run}-{number}" for number in count(2)))
    return next(name for name in names if not is_done(night_folder(world, name), world.files))


def simulate_nights(request: requests.SimulateInput, context: Context) -> Simulated:
    context.say(f"seed {request.seed}" if request.campaign is None else f"campaign {request.campaign}")

    def progress(done: int) -> None:
        fraction = min(1.0, done / request.nights)
        context.on_progress({"node": "nights", "event": "progress", "fraction": fraction, "text": f"{done:,}"})

    return Simulated.model_validate(simulate(**vars(request), on_progress=progress), from_attributes=True)


def run_worker(request: requests.WorkerInput, context: Context) -> Worked:
    """Raises `Refused` where this machine cannot train with the night's settings: a worker does nothing else."""
    settings = add_checkout_root(context.settings)
    config = to_worker_config(load_night_config(request.config, request.preset, context), settings)
    if reasons := list_night_refusals(config, settings):
        raise Refused(reasons, "This machine cannot train for this night.")
    world = make_night_deps(config, settings, say=context.say)
    return Worked(trainings=tuple(work(config, world, on=lambda: not request.once)))


def show_nights(request: requests.NightInput, context: Context) -> NightStatus:
    config = load_night_config(request.config, request.preset, context)
    root = tenant_root(context.settings, config.tenant)
    nights = sorted((path for path in (root / "nights").glob("*") if path.is_dir()), reverse=True)[:NIGHTS_SHOWN]
    reports = [(path.name, read_report(path, RealFiles())) for path in nights]
    lines = tuple(
        report.headline if report else f"Night {name} was begun and has no report." for name, report in reports
    )
    states = {**LocalMarkers(root / "markers").states(), **read_published_states(config, context.settings)}
    return NightStatus(
        tenant=config.tenant, nights=lines, markers={name: state.value for name, state in states.items()}
    )


def read_published_states(config: NightConfig, settings: Settings) -> dict[str, MarkerState]:
    """Return the markers in the object store, which every machine sees; empty without one. Raises `Unavailable`."""
    if not settings.weights_store:
        return {}
    return open_markers(to_worker_config(config, settings), settings, open_store(settings.weights_store)).states()


# corpora


def open_corpora(config: NightConfig, settings: Settings) -> Corpora:
    return Corpora(tenant_root(settings, config.tenant) / "corpora")


def find_bucket(config: NightConfig, name: str | None, method: str) -> BucketSpec:
    """Return the bucket of that name, or the first one of the method. Raises `NotFound` (`E-CORPUS`)."""
    fitting = [bucket for bucket in config.buckets if bucket.method == method and name in (None, bucket.name)]
    if not fitting:
        text = ", ".join(f"{bucket.name} ({bucket.method})" for bucket in config.buckets)
        raise NotFound(
            f"There is no {method} bucket {name or ''}.".replace(" .", "."), why=f"There are {text}.",
            do="Name one of them, or add it to the night's config.", code="E-CORPUS",
        )  # fmt: skip
    return fitting[0]


def add_commits(request: requests.EngineeringInput, context: Context) -> Added:
    settings = context.settings
    config = load_night_config(request.config, None, context)
    bucket = find_bucket(config, request.bucket, "sft")
    repository = request.repo.absolute()  # who types the command may read it
    roots = (
        repository.resolve(),
        *(root.absolute() for root in data_roots(settings.model_copy(update={"tenant": config.tenant}))),
    )
    briefs = json.loads(request.briefs.read_text(encoding="utf-8")) if request.briefs is not None else {}
    with reading_service() as service:
        read = service.read_commits(CommitsRequest(repository, roots, briefs))
    added = add(config, settings, bucket, lambda corpora: corpora.add(bucket.name, bucket.method, read.values))
    commits, skipped = read.commits, dict(sorted(read.skipped.items()))
    unread = commits - added.added - added.there - sum(skipped.values())
    if unread:
        skipped["too_old"] = unread
    return added.model_copy(update={"commits": commits, "skipped": skipped})


def add_corrections(request: requests.AddInput, context: Context) -> Added:
    config = load_night_config(request.config, None, context)
    bucket = find_bucket(config, request.bucket, "dpo")
    if request.file is None:
        value = {"prompt": request.prompt, "shadow": request.shadow, "verdict": request.verdict}
        return add(config, context.settings, bucket, lambda corpora: corpora.add(bucket.name, bucket.method, [value]))
    if not request.file.is_file():
        raise NotFound(
            f"The file {str(request.file)!r} does not exist.", do="Correct the path.", code="E-DATA-NOT-FOUND"
        )
    data = request.file.read_bytes()
    return add(config, context.settings, bucket, lambda corpora: corpora.add_lines(bucket.name, bucket.method, data))


def add(
    config: NightConfig, settings: Settings, bucket: BucketSpec, append: Callable[[Corpora], tuple[int, int]]
) -> Added:
    """Call `append` with the tenant's corpora, and count."""
    corpora = open_corpora(config, settings)
    with keep_service():
        added, there = append(corpora)
    return Added(bucket=bucket.name, added=added, there=there, file=str(corpora.file(bucket.name)))


def show_corpora(request: requests.NightInput, context: Context) -> CorpusStatus:
    config = load_night_config(request.config, request.preset, context)
    corpora = open_corpora(config, context.settings)
    written = any(corpora.file(bucket.name).exists() for bucket in config.buckets)
    with keep_service() if written else nullcontext():  # its process takes a second to start
        readings = [(bucket, corpora.read(bucket.name, bucket.method)) for bucket in config.in_order()]
    rows = (
        BucketStatus(
            bucket=bucket.name,
            method=bucket.method,
            role=bucket.adapter_role,
            valid=len(reading.tuples),
            invalid=len(reading.invalid),
            duplicates=reading.duplicates,
            threshold=bucket.threshold,
        )
        for bucket, reading in readings
    )
    return CorpusStatus(buckets=tuple(rows))


BEGUN, UNREADABLE = "begun", "unreadable"
"""States of a night without a report that can be read."""


class NightLine(Response):
    """A night as a list shows it."""

    tenant: str
    night: str
    state: str
    """completed, failed or skipped; begun: it has no report yet; unreadable."""
    headline: str
    started: float | None = None
    """When it began (seconds of the epoch)."""
    seconds: float | None = None
    window_s: float | None = None
    published: tuple[str, ...] = ()
    """Adapter versions."""


class NightList(Response):
    nights: tuple[NightLine, ...]
    more: bool = False
    """Whether there are older ones."""


class NightDetail(NightLine):
    """A night, whole."""

    next_steps: tuple[str, ...] = ()
    """For each failure what happened and what to do."""
    report: NightReport | None = None


def list_night_reports(request: NightsInput, context: Context) -> NightList:
    """Return the newest nights, of the caller's tenant or of all."""
    tenant = resolve_tenant(request.tenant, context)
    if tenant is None:
        return NightList(nights=())
    folders = sorted(night_folders(tenant, context), key=lambda path: (path.name, parse_tenant(path)), reverse=True)
    lines = tuple(NightLine(**read_line(path).model_dump(include=set(NightLine.model_fields))) for path in
                  folders[: request.limit])  # fmt: skip
    return NightList(nights=lines, more=len(folders) > request.limit)


def night_folders(tenant: str, context: Context) -> Iterator[Path]:
    """Yield the folders of the nights of a tenant, or of all ("")."""
    for root in (context.settings.home / "tenants").glob("*"):
        if tenant in ("", root.name):
            yield from (path for path in (root / "nights").glob("*") if path.is_dir())


def parse_tenant(folder: Path) -> str:
    return folder.parent.parent.name


def show_night(request: NightNameInput, context: Context) -> NightDetail:
    """Return one night. Raises `NotFound` (`E-NOT-FOUND`), `InvalidInput` (`E-NAME`), `Corrupt` (`E-CORRUPT`)."""
    tenant, night = resolve_tenant(request.tenant, context), check_name(request.night, "night")
    if tenant is not None:
        tenant = check_name(tenant or context.settings.tenant, "tenant")
        folder = tenant_root(context.settings, tenant) / "nights" / night
    if tenant is None or not folder.is_dir():
        raise NotFound(
            f"There is no night {request.night!r}.", do="List them with `trainyard nightly list`.", code="E-NOT-FOUND"
        )
    detail = read_line(folder)
    if detail.state == UNREADABLE:
        raise damaged_error(folder / REPORT_FILE, detail.headline)
    return detail


def read_line(folder: Path) -> NightDetail:
    """Return a night by its files; one whose report cannot be read says why."""
    named = {"tenant": parse_tenant(folder), "night": folder.name}
    try:
        report = read_report(folder, DISK)
    except (ValidationError, ValueError, OSError) as error:
        return NightDetail(**named, state=UNREADABLE, headline=f"Its report cannot be read: {error}"[:500])
    if report is None:
        text = f"Night {folder.name} was begun and has no report."
        return NightDetail(**named, state=BEGUN, headline=text, started=read_start_time(folder))
    return NightDetail(
        **named, state=report.state, headline=report.headline, started=report.started or None, seconds=report.seconds,
        window_s=report.window_s, next_steps=tuple(next_steps(report.failures)), report=report,
        published=tuple(training.version for training in report.phase2.trainings if training.outcome == "published"),
    )  # fmt: skip


def read_start_time(folder: Path) -> float | None:
    """Return when a night was begun; None where its record cannot be read."""
    path = folder / BEGUN_FILE
    try:
        return float(read_versioned("night", path.read_bytes(), path)["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
