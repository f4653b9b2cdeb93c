"""Nights and corpora from outside: run one, simulate thousands, work for another machine, look at what there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainyard.api.planning import examine, resolved
from trainyard.api.stack import checkout
from trainyard.data.corpora import Corpora, read_lines
from trainyard.data.limited.requests import CommitsRequest
from trainyard.data.limited.service import reading_service
from trainyard.data.paths import data_roots
from trainyard.errors import InvalidInput, NotFound, Reason, Refused
from trainyard.night.phases import run_night
from trainyard.night.report import NightReport, TrainingReport, markdown, read_report
from trainyard.night.surroundings import world_of
from trainyard.night.training import tenant_root
from trainyard.night.worker import work
from trainyard.project import project_folder
from trainyard.settings import Settings
from trainyard.spec.load.text import parse_text
from trainyard.spec.night import BucketSpec, NightConfig, checked_name, located, night_chain, read_night
from trainyard.stores.files import RealFiles
from trainyard.stores.markers.local import LocalMarkers
from trainyard.testing.nights.simulate import simulate

CONFIG_FILE = "nightly.yaml"
PRESETS = project_folder() / "deployments" / "presets"
NIGHTS_SHOWN = 10
CAMPAIGNS_SHOWN = 20


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NightInput(Model):
    """Where the config comes from: a file, a preset, or TRAINYARD_HOME/nightly.yaml; else the defaults."""

    config: Path | None = None
    preset: str | None = None


class RunNightInput(NightInput):
    run: str | None = None
    """Name of the night; by default its date."""


class SimulateInput(Model):
    nights: int = Field(1_000, ge=1, le=10_000_000)
    seed: int = Field(0, ge=0)
    plant: str | None = None
    processes: int | None = Field(None, ge=1, le=256)
    campaign: int | None = Field(None, ge=0)
    """Replay one campaign by its seed; `nights` and `seed` choose nothing then."""


class Simulated(Model):
    """What a simulation found; its last line is the count of invariants."""

    seed: int
    nights: int
    attempts: int
    seconds: float
    plant: str | None
    violations: tuple[str, ...]
    failed: tuple[int, ...] = ()
    """The seeds of the campaigns with a violation."""
    last_line: str

    @property
    def exit_code(self) -> int:
        return 1 if self.violations else 0


class WorkerInput(NightInput):
    once: bool = False


class Worked(Model):
    trainings: tuple[TrainingReport, ...]


class NightStatus(Model):
    """The last nights, the markers, and what would be done tonight."""

    tenant: str
    nights: tuple[str, ...]
    markers: dict[str, str]


class BucketInput(NightInput):
    bucket: str | None = None


class EngineeringInput(BucketInput):
    repo: Path
    briefs: Path | None = None
    """JSON object: a commit's id -> the brief of its review."""


class AddInput(BucketInput):
    file: Path | None = None
    prompt: str | None = None
    shadow: str | None = None
    verdict: str | None = None


class Added(Model):
    bucket: str
    added: int
    there: int
    """Tuples that the bucket had already."""
    file: str
    commits: int | None = None
    """Commits of the branch: added + there + skipped."""
    skipped: dict[str, int] = {}
    """Reason -> commits that gave no tuple."""


class BucketStatus(Model):
    bucket: str
    method: str
    role: str
    valid: int
    invalid: int
    duplicates: int
    threshold: int


class CorpusStatus(Model):
    buckets: tuple[BucketStatus, ...]


def config_of(given: NightInput, settings: Settings) -> NightConfig:
    """The night's config of a file or preset; a relative preset name is one of deployments/presets.

    Raises `Refused` with all reasons, `NotFound` (`E-NIGHT-CONFIG`).
    """
    path = given.config
    if given.preset is not None:
        path = PRESETS / f"{checked_name(given.preset, 'preset')}.yaml"
    if path is None:
        path = settings.home / CONFIG_FILE
        if not path.is_file():
            return read_night({"tenant": settings.tenant})
    if not path.is_file():
        raise NotFound(f"There is no config {path}.", do="Give a YAML file, or leave it out.", code="E-NIGHT-CONFIG")
    value = parse_text(path.read_bytes())
    if not isinstance(value, dict):
        raise InvalidInput(f"{path.name} is no mapping.", do="Write keys like `tenant:`.", code="E-NIGHT-CONFIG")
    return read_night({"tenant": settings.tenant, **value.get("config", value)})


def at_home(settings: Settings) -> Settings:
    """The same settings, with the checkout as a data root: the shipped sample streams lie there."""
    return settings.model_copy(update={"data_roots": (*settings.data_roots, checkout())})


def unfit_here(config: NightConfig, settings: Settings) -> list[Reason]:
    """The reasons why this machine cannot carry out a training of the night, from the function that a run asks."""
    chains = [resolved(night_chain(config, method), settings) for method in config.methods]
    return located(reason for chain in chains for reason in examine(chain, settings))


def unfit_words(config: NightConfig, settings: Settings) -> Callable[[], str]:
    """The same as the note of a night whose markers wait, looked up when the documents are read."""
    return lambda: "; ".join(reason.line() for reason in unfit_here(config, settings))


def run_once(given: RunNightInput, settings: Settings, say: Callable[[str], None]) -> NightReport:
    """A night; where this machine cannot train with its settings, the markers wait and the report says why."""
    settings = at_home(settings)
    config = config_of(given, settings)
    world = world_of(config, settings, say=say, unfit=unfit_words(config, settings))
    report = run_night(config, world, given.run)
    say(report.headline)
    return report


def simulated(given: SimulateInput, progress: Callable[[int], None]) -> Simulated:
    found = simulate(
        given.nights,
        given.seed,
        plant=given.plant,
        processes=given.processes,
        campaign=given.campaign,
        on_progress=progress,
    )
    return Simulated(
        seed=found.seed,
        nights=found.nights,
        attempts=found.attempts,
        seconds=round(found.seconds, 1),
        plant=found.plant,
        violations=found.violations,
        failed=found.failed,
        last_line=found.last_line,
    )


def worker(given: WorkerInput, settings: Settings, say: Callable[[str], None]) -> Worked:
    """Raises `Refused` where this machine cannot train with the night's settings: a worker does nothing else."""
    settings = at_home(settings)
    config = config_of(given, settings)
    if reasons := unfit_here(config, settings):
        raise Refused(reasons, "This machine cannot train for this night.")
    world = world_of(config, settings, say=say)
    return Worked(trainings=tuple(work(config, world, on=lambda: not given.once)))


def status(given: NightInput, settings: Settings) -> NightStatus:
    config = config_of(given, settings)
    root = tenant_root(settings, config.tenant)
    nights = sorted((path for path in (root / "nights").glob("*") if path.is_dir()), reverse=True)[:NIGHTS_SHOWN]
    reports = [(path.name, read_report(path, RealFiles())) for path in nights]
    lines = tuple(
        report.headline if report else f"Night {name} was begun and has no report." for name, report in reports
    )
    states = LocalMarkers(root / "markers").states()
    return NightStatus(tenant=config.tenant, nights=lines, markers={name: one.value for name, one in states.items()})


# corpora


def corpora_of(config: NightConfig, settings: Settings) -> Corpora:
    return Corpora(tenant_root(settings, config.tenant) / "corpora")


def bucket_of(config: NightConfig, name: str | None, method: str) -> BucketSpec:
    """The bucket of that name, or the first one of the method. Raises `NotFound` (`E-BUCKET`)."""
    fitting = [one for one in config.buckets if one.method == method and name in (None, one.name)]
    if not fitting:
        known = ", ".join(f"{one.name} ({one.method})" for one in config.buckets)
        raise NotFound(
            f"There is no {method} bucket {name or ''}.".replace(" .", "."), why=f"There are {known}.",
            do="Name one of them, or add it to the night's config.", code="E-BUCKET",
        )  # fmt: skip
    return fitting[0]


def engineering(given: EngineeringInput, settings: Settings) -> Added:
    config = config_of(given, settings)
    bucket = bucket_of(config, given.bucket, "sft")
    place = given.repo.absolute()  # who types the command may read it
    roots = (place.resolve(), *(root.absolute() for root in data_roots(settings, config.tenant)))
    briefs: dict[str, str] = {}
    if given.briefs is not None:
        briefs = json.loads(given.briefs.read_text(encoding="utf-8"))
    with reading_service() as service:
        read = service.read_commits(CommitsRequest(place, roots, briefs))
    added = add(config, settings, bucket, read.values)
    commits, skipped = read.commits, dict(sorted(read.skipped.items()))
    unread = commits - added.added - added.there - sum(skipped.values())
    if unread:
        skipped["too_old"] = unread
    return added.model_copy(update={"commits": commits, "skipped": skipped})


def apprenticeship(given: AddInput, settings: Settings) -> Added:
    config = config_of(given, settings)
    bucket = bucket_of(config, given.bucket, "dpo")
    if given.file is not None:
        values = list(read_lines(given.file))
    else:
        values = [{"prompt": given.prompt, "shadow": given.shadow, "verdict": given.verdict}]
    return add(config, settings, bucket, values)


def add(config: NightConfig, settings: Settings, bucket: BucketSpec, values: list[dict[str, Any]]) -> Added:
    corpora = corpora_of(config, settings)
    added, there = corpora.add(bucket.name, bucket.method, values)
    return Added(bucket=bucket.name, added=added, there=there, file=str(corpora.file(bucket.name)))


def corpus_status(given: NightInput, settings: Settings) -> CorpusStatus:
    config = config_of(given, settings)
    corpora = corpora_of(config, settings)
    rows = []
    for bucket in config.in_order():
        reading = corpora.read(bucket.name, bucket.method)
        rows.append(
            BucketStatus(
                bucket=bucket.name,
                method=bucket.method,
                role=bucket.adapter_role,
                valid=len(reading.tuples),
                invalid=len(reading.invalid),
                duplicates=reading.duplicates,
                threshold=bucket.threshold,
            )
        )
    return CorpusStatus(buckets=tuple(rows))


# as text


def night_text(report: NightReport) -> str:
    return markdown(report).rstrip()


def simulated_text(found: Simulated) -> str:
    """The seed first, the count of invariants last; between them each violation, and the line that replays it."""
    plant = f", with {found.plant} planted" if found.plant else ""
    rate = found.nights / found.seconds if found.seconds else 0.0
    head = f"seed {found.seed}: {found.nights:,} nights in {found.attempts:,} attempts, "
    head += f"{found.seconds:g} s ({rate:.0f} nights/s){plant}"
    return "\n".join([head, *violation_lines(found), found.last_line])


def violation_lines(found: Simulated) -> Iterator[str]:
    """The violations of each campaign, and the command that carries out this campaign alone."""
    plant = f" --plant {found.plant}" if found.plant else ""
    for seed in found.failed[:CAMPAIGNS_SHOWN]:
        yield from (line for line in found.violations if line.startswith(f"seed {seed}: "))
        yield f"  replay: trainyard nightly simulate --campaign {seed}{plant}"
    if len(found.failed) > CAMPAIGNS_SHOWN:
        yield f"{len(found.failed) - CAMPAIGNS_SHOWN:,} more campaigns with violations; --json lists all of them"


def status_text(found: NightStatus) -> str:
    lines = [*found.nights] or ["No night yet."]
    return "\n".join([*lines, *(f"{state:<10} {name}" for name, state in found.markers.items())])


def added_text(found: Added) -> str:
    """What a corpus has got, and what was left out."""
    lines = [f"{found.bucket}: {found.added:,} added, {found.there:,} there already ({found.file})"]
    if found.skipped:
        reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in found.skipped.items())
        lines.append(f"{sum(found.skipped.values()):,} of {found.commits:,} commits skipped: {reasons}")
    return "\n".join(lines)


TEXTS: dict[str, Callable[[Any], str]] = {
    "corpus engineering": added_text,
    "corpus apprenticeship": added_text,
    "nightly run": night_text,
    "nightly simulate": simulated_text,
    "nightly status": status_text,
}
