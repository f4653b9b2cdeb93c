"""Jobs: runs with a trainer, started, listed, shown, paused, resumed and cancelled. Prefect is the truth about them.

Everything here takes a job by its id, by a beginning of its id that fits only one, or by its name.

A job once more: a new run with the parameters of an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from trainyard.app.chains.next_commands import next_commands
from trainyard.app.chains.run import add_next_commands, run, start
from trainyard.app.context import Context
from trainyard.app.jobs.logs import is_gone
from trainyard.app.jobs.nodes import TimeLeft, estimate_time_left
from trainyard.app.live.jobs import add_labels, list_job_rows, note_change, refuse_steering
from trainyard.app.live.trainings import curves_folder, find_trainings, read_new_steps
from trainyard.app.live.waits import DeviceWait
from trainyard.app.names import find_job, shortest_name
from trainyard.app.plan.limits import lock_worker_of
from trainyard.app.plan.parse import JOB, deep_merge
from trainyard.app.plan.refusals import require_trainer
from trainyard.app.responses import Response
from trainyard.app.run_records import (
    REFRESH_FROM,
    REFRESH_TAG,
    ClosedGate,
    NodeResult,
    RunResult,
    read_events,
    read_result,
)
from trainyard.app.runs import RunsClient, connect_runs
from trainyard.app.training_logs import TrainingLogs, find_training_logs
from trainyard.backends.cloud.journal import is_open_at_provider, request_cancel, withdraw_cancel
from trainyard.errors import InvalidInput, NotFound
from trainyard.json_types import JsonObject
from trainyard.operations import jobs as requests
from trainyard.operations.chains import RunInput
from trainyard.settings import Settings
from trainyard.spec.job import JobSpec
from trainyard.spec.load.files import load_value
from trainyard.spec.migrate import job_words, spell_out
from trainyard.spec.model_schema import flatten_settings, list_changes
from trainyard.spec.money import Cost
from trainyard.spec.states import JobState
from trainyard.spec.templates import TEMPLATES
from trainyard.stores.jobs import NoteStore
from trainyard.stores.live.curves import Columns
from trainyard.stores.live.job_ids import CHAIN_ID, CONTINUES_TAG, REVISION_TAG, find_continued_run, is_reserved
from trainyard.stores.live.job_index import ENDED, JobQuery, read_cursor
from trainyard.stores.metrics import Point
from trainyard.train.divergence import DivergenceKind

STOP_WAIT_S, STOP_POLL_S = 60.0, 0.3
FILTERS = sorted(JobQuery.__dataclass_fields__.keys() & requests.JobsInput.model_fields.keys())
"""Fields of a request that are those of a query."""


class JobTraining(Response):
    """Subject and progress of a job."""

    stage: str = ""
    method: str = ""
    backend: str = ""
    base_model: str = ""
    node: str = ""
    """The trainer of `step` and `loss`: the last one that has begun."""
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None


class JobLabels(JobTraining):
    """Group and note that people gave a job, and its cost."""

    group: str = ""
    """The group that it was started in, or its sweep."""
    note: str = ""
    cost: Cost | None = None
    """What its trainings have cost so far; None where no price is known."""


class Job(JobLabels):
    """A job, as a list shows it."""

    id: str
    """`job-` and 12 hex digits; the run's own id, where no trainer is part of it."""
    run_id: str
    """Of its run in Prefect, and the name of its folder below `TRAINYARD_HOME/runs`."""
    name: str
    tenant: str = ""
    state: JobState
    detail: str
    """starting, waiting for the device …, pausing, cancelling, preempted, budget exceeded, crashed …"""
    message: str
    created: float | None = None
    started: float | None = None
    seconds: float = 0.0
    attempts: int = 0
    tags: tuple[str, ...] = ()
    pid: int | None = None
    """The run's process on this machine."""
    url: str = ""
    waiting: DeviceWait | None = None
    """What it waits for now: who has the device, since when, and its place in the queue."""

    def _repr_svg_(self) -> str | None:
        """Return the loss as it is when a notebook shows it; None where the run is on another machine."""
        from trainyard.app.training_logs import run_svg  # draws curves; only notebooks need it

        svg: str | None = run_svg(self.run_id)
        return svg


JOBS: TypeAdapter[tuple[Job, ...]] = TypeAdapter(tuple[Job, ...])
"""What reads the rows of a list, all at once; they have more fields than lists show."""


class JobList(Response):
    jobs: tuple[Job, ...]
    next: str | None = None
    """Cursor of the next page; None at the end."""
    as_of: float | None = None
    """When this was true (seconds of the epoch), where Prefect cannot be asked; None: now."""


class Training(Response):
    """A trainer of a job."""

    node: str
    step: int
    total_steps: int | None
    epoch: float | None
    total_epochs: float | None
    loss: float | None
    learning_rate: float | None
    checkpoints: tuple[str, ...]
    folder: str


class TrainingDivergence(Response):
    """A loss that rose or did not fall, numbers near their limit, or overfitting, with what to do about it."""

    node: str
    kind: DivergenceKind
    step: int
    because: str
    advice: str
    text: str


class JobDetail(Job):
    """A job, whole."""

    parameters: JsonObject
    trainings: tuple[Training, ...]
    nodes: tuple[NodeResult, ...]
    """How its nodes ended, at its last end."""
    next: tuple[str, ...] = ()
    """Commands for what comes after it."""
    divergence: tuple[TrainingDivergence, ...] = ()
    """What speaks against its trainings in their own numbers: so far, and at the end of one that has ended."""
    gate: ClosedGate | None = None
    """Why nothing was deployed, where the gate of its last end said no."""
    left: tuple[TimeLeft, ...] = ()
    """The time that each training has left, while the job waits or runs."""
    as_of: float | None = None
    """When this was true (seconds of the epoch), where Prefect cannot be asked; None: now."""


class TrainingCurve(Response):
    """A trainer's steps, or the means of several steps each."""

    node: str
    points: tuple[Point, ...]
    """Of several steps: the number and time of the last one, and the mean of each metric."""
    steps_per_point: int = 1
    low: Columns = Field({})
    """Metric -> its smallest value in the steps of each point; empty where each point is one step."""
    high: Columns = Field({})
    last: Columns = Field({})


class JobMetrics(Response):
    id: str
    trainings: tuple[TrainingCurve, ...]
    plot: bool = False
    """Draw the curves instead of listing the steps."""

    def _repr_svg_(self) -> str:
        from trainyard.app.notebook_views import metrics_svg  # draws curves; only notebooks need it

        return metrics_svg(self)


Resumed = Job | RunResult
"""What `jobs resume` gives: the job, or the run's end if it was watched."""


def create_job(request: requests.CreateInput, context: Context) -> RunResult:
    options = {"watch": request.watch, "yes": request.yes, "group": request.group}
    return run(RunInput(target=JOB, parameters=build_body(request), **options), context)


def list_jobs(request: requests.JobsInput, context: Context) -> JobList:
    """Return a page of jobs, the newest first. Raises `InvalidInput` (`E-PARAMETER`) for a cursor that is none."""
    tenant = context.caller.tenant
    if tenant and request.tenant not in (None, tenant):
        return JobList(jobs=())  # another tenant's jobs are not there
    filters = {name: value for name in FILTERS if (value := getattr(request, name)) is not None}
    after = read_cursor(request.cursor) if request.cursor else None
    query = JobQuery(**filters | {"tenant": tenant or request.tenant or ""}, after=after)
    (rows, cursor), as_of = list_job_rows(query, context)
    return JobList(jobs=JOBS.validate_python(rows, extra="ignore"), next=cursor or None, as_of=as_of)


def show_job(request: requests.JobInput, context: Context) -> JobDetail:
    """Return one job with its trainers, its nodes and what it was started with."""
    row, as_of = find_job(request.job, context)
    result = read_result(context.settings.runs / row["run_id"])
    trainings = tuple(
        Training(**{**describe_progress(training), "checkpoints": tuple(work.checkpoints())})
        for training, work in zip(row["trainings"], find_trainings(row), strict=True)
    )
    return JobDetail(
        **build_job(row).model_dump(), parameters=row["parameters"], trainings=trainings, as_of=as_of,
        nodes=result.nodes if result else (), gate=result.gate if result else None,
        left=estimate_time_left(row, context),
        divergence=read_divergence(context.settings.runs / row["run_id"], result if row["state"] in ENDED else None),
        next=list_next(row, result, context),
    )  # fmt: skip


def list_next(row: JsonObject, result: RunResult | None, context: Context) -> tuple[str, ...]:
    """Return the commands for what comes after a job, in the state that it has now."""
    now = {name: row[name] for name in ("id", "run_id", "name", "state")}
    nodes = {"nodes": result.nodes, "chain": result.chain} if result else {}
    folder = context.settings.runs / row["run_id"]
    known_as = shortest_name(row["run_id"], row["name"], context)
    return next_commands(RunResult(message="", **now, **nodes), folder, known_as)


def read_divergence(folder: Path, result: RunResult | None) -> tuple[TrainingDivergence, ...]:
    """Return what each finished training says, and the newest warnings of each kind of the others."""
    divergences: dict[tuple[str, str], JsonObject] = {}
    for event in read_events(folder):
        if event["event"] == "started":
            divergences = {key: divergence for key, divergence in divergences.items() if key[0] != event["node"]}
        elif divergence := event.get("divergence"):
            divergences[event["node"], divergence["kind"]] = divergence
    for node in result.nodes if result else ():
        if node.state.succeeded:
            divergences = {key: divergence for key, divergence in divergences.items() if key[0] != node.id}
            divergences |= {
                (node.id, divergence["kind"]): divergence for divergence in node.facts.get("divergence") or ()
            }
    return tuple(TrainingDivergence(node=node, **divergence) for (node, _), divergence in divergences.items())


def describe_progress(training: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in training.items() if key in Training.model_fields}


def show_metrics(request: requests.MetricsInput, context: Context) -> JobMetrics:
    """Step, loss and learning rate of every step. Raises `NotFound` (`E-NOT-FOUND`) before the first."""
    row, _ = find_job(request.job, context)
    works = [work for work in find_trainings(row) if request.node in (None, work.node)]
    curves = [read_curve(work, request, context.settings) for work in works]
    if not any(curve.points for curve in curves):
        raise NotFound(
            f"The job {row['name']} has no metrics yet.",
            why=f"It is {row['state']} {row['detail']}".strip() + ", and no trainer of it has taken a step.",
            do="Look again when its trainer is running.",
            code="E-NOT-FOUND",
        )
    return JobMetrics(id=row["id"], trainings=tuple(curves), plot=request.plot)


def read_curve(work: TrainingLogs, request: requests.MetricsInput, settings: Settings) -> TrainingCurve:
    """Return one trainer's curve from its store, which has read every step that is there by now."""
    curve = read_new_steps(work, curves_folder(settings)).read(
        request.max_points, request.since_step, request.until_step
    )
    return TrainingCurve(node=work.node, **{field.name: getattr(curve, field.name) for field in fields(curve)})


def note_job(request: requests.NoteInput, context: Context) -> Job:
    """Replace the note of a job; an empty text removes it."""
    row, _ = find_job(request.job, context)
    NoteStore(context.settings.notes).write(row["run_id"], request.text, context.caller.name)
    return build_job(add_labels(row, context.settings))


def pause_job(request: requests.StopInput, context: Context) -> Job:
    return stop_job(request, context, "pause")


def cancel_job(request: requests.StopInput, context: Context) -> Job:
    return stop_job(request, context, "cancel")


def resume_job(request: requests.ResumeInput, context: Context) -> Resumed:
    """Continue a job that is paused, failed, crashed or cancelled, or start one whose trainer is here now."""
    since, settings = time.time(), context.settings
    refuse_steering(request.job, settings, context.caller.tenant)
    runs = connect_runs(settings)
    row = runs.find_job(request.job, context.caller.tenant)
    refuse_changes(row, request.parameters)
    if row["waits_for_trainer"]:
        require_trainer(row["name"], JobSpec.model_validate(row["parameters"]["job"]).backend, settings)
    with lock_worker_of(row, context):
        for work in find_open_at_provider(row, settings):
            withdraw_cancel(work)
        runs.resume_run(row["run_id"])
        job = build_job(note_change(runs.find_job(row["run_id"]), context))
    if not request.watch:
        return job
    return add_next_commands(runs.watch_run(job.run_id, on_progress=context.on_progress, since=since), context)


def build_body(request: requests.CreateInput) -> JsonObject:
    """Return the body of a job: a file's, with the parameters laid over it.

    Raises `InvalidInput` (`E-SPEC-FILE`) for a file without a job.
    """
    if request.file is None:
        return request.parameters
    if not request.file.is_file():
        raise NotFound(f"There is no file {str(request.file)!r}.", do="Correct the path.", code="E-PARAMETER")
    value = load_value(request.file)
    if not isinstance(value, dict) or "nodes" in value or value.get("template", JOB) != JOB:
        raise InvalidInput(
            f"{request.file} does not contain a job.",
            why="A job is one data set and one training: `dataset` and the settings of a trainer.",
            do=f"Run a chain or a template by `trainyard run {request.file}`.",
            code="E-SPEC-FILE",
        )
    return deep_merge(value.get("parameters", {}) if "template" in value else value, request.parameters)


def stop_job(request: requests.StopInput, context: Context, verb: Literal["pause", "cancel"]) -> Job:
    """Pause or cancel a job and, if that is wanted, wait until its process is gone."""
    refuse_steering(request.job, context.settings, context.caller.tenant)
    runs = connect_runs(context.settings)
    row = runs.find_job(request.job, context.caller.tenant)
    run_id = row["run_id"]
    if verb == "cancel" and (works := find_open_at_provider(row, context.settings)):
        context.say(f"{row['name']}: its provider still trains it, and is asked to end it")
        end_at_provider(row, works, runs)
    else:
        (runs.pause_run if verb == "pause" else runs.cancel_run)(run_id)
    row, deadline = runs.find_job(run_id), time.monotonic() + STOP_WAIT_S
    if request.wait and not is_gone(row):
        context.say(f"{row['name']}: {verb} asked for; its training saves at the next step")
    while request.wait and not is_gone(row) and time.monotonic() < deadline:
        time.sleep(STOP_POLL_S)
        row = runs.find_job(run_id)
    return build_job(note_change(row, context))


def find_open_at_provider(row: Mapping[str, object], settings: Settings) -> list[Path]:
    """Return the trainings of a job without a running process that a provider has not ended."""
    if row["state"] in (JobState.RUNNING, JobState.COMPLETED):
        return []
    logs = find_training_logs(settings.runs / str(row["run_id"]))
    return [log.folder for log in logs if is_open_at_provider(log.folder)]


def end_at_provider(row: Mapping[str, object], works: Iterable[Path], runs: RunsClient) -> None:
    """Start a job once more, so that the worker, which has the key, ends its trainings at their provider."""
    for work in works:
        request_cancel(work)
    if row["state"] != JobState.PENDING:
        runs.resume_run(str(row["run_id"]))


def build_job(row: Mapping[str, object]) -> Job:
    """Return the row of a job, with the part of its files, as lists show it."""
    return Job.model_validate(row, extra="ignore")


def refuse_changes(row: JsonObject, parameters: JsonObject) -> None:
    """A job continues with what it was started with. Raises `InvalidInput` (`E-CHECKPOINT-MISMATCH`)."""
    started_with = spell_out(job_words(row["parameters"].get("job", row["parameters"])))
    parameters = spell_out(job_words(parameters))
    differing, named = list_changes(started_with, parameters), flatten_settings(parameters)
    if changes := [f"{name}: {old} before, {new} now" for name, old, new in differing if name in named]:
        raise InvalidInput(
            f"The job {row['name']} cannot continue with other settings: {'; '.join(changes)}.",
            why="Its checkpoints belong to what it was started with.",
            do="Resume it without parameters, or start a new job.",
            code="E-CHECKPOINT-MISMATCH",
        )


# Logs


def retry_job(request: requests.RetryInput, context: Context) -> RunResult:
    """Start a new job with the parameters of an earlier one, whatever became of that.

    A training that is the same continues where the earlier job left it, and finished results are taken over; with
    `refresh` everything is made again. Raises `NotFound` (`E-NOT-FOUND`) where the template of
    the job is not there any more, and what `start` raises.
    """
    runs = connect_runs(context.settings)
    row = runs.find_job(request.job, context.caller.tenant)
    target, parameters = replace_max_spend(read_run_request(row, runs), request.max_spend)
    tags = tuple(
        tag for tag in row["tags"] if not is_reserved(tag) and not tag.startswith(REFRESH_FROM) and tag != REFRESH_TAG
    )
    chain = tuple(tag for tag in row["tags"] if CHAIN_ID.fullmatch(tag) or REVISION_TAG.fullmatch(tag))
    work = () if request.refresh else (f"{CONTINUES_TAG}{find_continued_run(row['tags']) or row['run_id']}",)
    again = RunInput(target=target, parameters=parameters, refresh=request.refresh, watch=request.watch, tags=tags)
    return start(again, context, own_tags=(*chain, *work))


def replace_max_spend(
    request: tuple[str | JsonObject, JsonObject], usd: Decimal | None
) -> tuple[str | JsonObject, JsonObject]:
    """Return the request of a run with another limit of money. Raises `InvalidInput` (`E-PARAMETER`)."""
    target, parameters = request
    if usd is None:
        return request
    if isinstance(target, Mapping):
        return {**target, "max_spend": str(usd)}, parameters
    if target in (JOB, *TEMPLATES):
        return target, {**parameters, "max_spend": str(usd)}
    raise InvalidInput(
        f"The flow {target} has no max_spend.", why="Chains, jobs and templates have one.",
        do="Set max_spend_per_run in trainyard.toml.", code="E-PARAMETER",
    )  # fmt: skip


def read_run_request(row: JsonObject, runs: RunsClient) -> tuple[str | JsonObject, JsonObject]:
    """Return the target and the parameters that a job was started with."""
    parameters = row["parameters"]
    if "job" in parameters:
        return JOB, parameters["job"]
    if "spec" in parameters:
        return parameters["spec"], {}
    template = runs.find_deployment(row["run_id"]).partition("/")[0]
    if template not in TEMPLATES:
        raise NotFound(
            f"The job {row['name']} cannot be started again.",
            why="The deployment that started it is not there any more, or is of no template.",
            do="Start a new job, or resume this one.",
            code="E-NOT-FOUND",
        )
    return template, parameters
