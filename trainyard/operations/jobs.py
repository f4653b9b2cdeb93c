"""Jobs: start, list, follow, control and compare. Requests, texts and rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from trainyard.operations.base import Parameters, Request
from trainyard.operations.chains import (
    GROUP_NAME,
    PARAMETERS,
    FewRows,
    Group,
    Refresh,
    node_table,
    node_text,
    nodes_text,
    run_text,
)
from trainyard.operations.fields import Argument, Option
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import draw_curves, format_table, message_text, next_lines, short_reason
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage
from trainyard.spec.money import Dollars
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import find_given_name
from trainyard.stores.metrics import format_duration

if TYPE_CHECKING:
    from trainyard.app.chains.compare import Comparison
    from trainyard.app.jobs.checkpoints import CheckpointList, VerifiedCheckpoints
    from trainyard.app.jobs.jobs import Job, JobDetail, JobList, JobMetrics
    from trainyard.app.jobs.logs import JobLog
    from trainyard.app.jobs.provenance import Provenance
    from trainyard.app.jobs.samples import JobSamples


class JobInput(Request):
    job: Annotated[str, Argument("JOB", completes="run")] = Field(
        min_length=1, description="Id of a job, its name, or the beginning of one."
    )


class NodeInput(JobInput):
    node: Annotated[str, Argument("NODE")] = Field(min_length=1, max_length=200, description="Id of the node.")


class CreateInput(Request):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A job: a data set and a trainer."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")
    yes: FewRows = False
    group: Group = ""


class NoteInput(JobInput):
    text: Annotated[str, Argument("TEXT")] = Field(
        "", max_length=4000, description="What to remember about the job; empty: remove the note."
    )


class StopInput(JobInput):
    wait: Annotated[bool, Option("--wait/--no-wait")] = Field(True, description="Wait until its process has ended.")


class ResumeInput(JobInput):
    parameters: Parameters = Field({}, description=PARAMETERS)
    """Nothing may be changed: what differs is reported."""
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")


class RetryInput(JobInput):
    refresh: Refresh = False
    max_spend: Dollars | None = Field(None, description="USD that the new job may spend; default: as the earlier one.")
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow it to its end.")


class CompareInput(Request):
    job: Annotated[tuple[str, ...], Argument("JOB[/TRAINER]", completes="run")] = Field(
        min_length=2, max_length=5, description="Two to five jobs: names, ids, or beginnings of them."
    )
    plot: Annotated[bool, Option(local=True)] = Field(False, description="Draw the loss curves of two.")


class CheckpointsInput(JobInput):
    node: str | None = Field(None, description="Only this trainer's.")


class VerifyInput(CheckpointsInput):
    checkpoint: Annotated[str | None, Argument("CHECKPOINT")] = Field(
        None, description="Only this one, such as step-0000000120; default: all."
    )


class SamplesInput(JobInput):
    node: str | None = Field(None, description="Only this trainer's.")
    step: int | None = Field(None, ge=0, description="Only of this step.")
    limit: int = Field(10, ge=1, le=200, description="Maximum number of evaluations, newest first.")


class JobsInput(Request):  # `stores/live/job_index.py` turns these filters into SQL: `JobQuery`, `conditions`
    state: JobState | None = Field(None, description="Only jobs in this state.")
    name: str | None = Field(None, min_length=1, description="Only jobs of this name.")
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only jobs of this tenant.")
    backend: BackendName | None = Field(None, description="Only jobs whose last trainer runs on it.")
    stage: Stage | None = Field(None, description="Only jobs whose last trainer has this objective.")
    group: str | None = Field(None, pattern=GROUP_NAME, description="Only jobs of this group, or of this sweep.")
    since: datetime | None = Field(
        None, description="Only jobs created at this time or later, such as 2026-11-27 or 2026-11-27T18:00Z."
    )
    text: str | None = Field(
        None, min_length=1, max_length=200, description="Only with this text in name, id, tags, base model or message."
    )
    limit: int = Field(50, ge=1, le=10_000, description="Maximum number of results.")
    cursor: str | None = Field(None, max_length=200, description="Continue after a page: its `next`.")


class LogsInput(JobInput):
    follow: Annotated[bool, Option("-f", "--follow", local=True)] = Field(
        False, description="Print new lines until the job ends."
    )
    tail: int | None = Field(None, ge=0, description="Only the last lines.")
    source: str | None = Field(None, description="Only this log: run, or a trainer; with it, bytes from an offset on.")
    offset: int | None = Field(None, ge=0, description="Where to begin in it: the next_offset of the part before.")
    before: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Where to end in it: the first_offset of the part after."
    )
    limit_bytes: int = Field(65_536, ge=1, le=4_194_304, description="Maximum number of bytes of that log.")


class MetricsInput(JobInput):
    node: str | None = Field(None, description="Only this trainer.")
    max_points: int | None = Field(None, ge=1, le=100_000, description="Maximum number of points; default: each step.")
    since_step: int | None = Field(None, ge=0, description="Only from this step on.")
    until_step: int | None = Field(None, ge=0, description="Only up to this step.")
    plot: Annotated[bool, Option(local=True)] = Field(
        False, description="Draw the curves instead of listing the steps."
    )


NOTE_CHARS = 40


def cut(note: str) -> str:
    """Return the beginning of a note, in one line."""
    text = " ".join(note.split())
    return text if len(text) <= NOTE_CHARS else f"{text[:NOTE_CHARS]}…"


def jobs_text(result: JobList) -> str:
    rows, is_labelled = [], any(job.group or job.note for job in result.jobs)
    has_costs = any(job.cost is not None for job in result.jobs)
    for job in result.jobs:
        step = f"{job.step}/{job.total_steps}" if job.total_steps else "-"
        message = short_reason(job.message)[:60]
        loss = "-" if job.loss is None else f"{job.loss:.4f}"
        labels = [job.group or "-", cut(job.note) or "-"] if is_labelled else []
        created = "-" if job.created is None else time.strftime("%m-%d %H:%M", time.localtime(job.created))
        costs = [format_cost(job.cost)] if has_costs else []
        seconds = f"{job.seconds:.0f}"
        rows.append([job.id, job.name, created, *labels, job_state(job), step, loss, seconds, *costs, message])
    label_names = ("group", "note") if is_labelled else ()
    header = (
        "id",
        "name",
        "created",
        *label_names,
        "state",
        "step",
        "loss",
        "seconds",
        *(("cost",) if has_costs else ()),
        "message",
    )
    lines = [format_table(rows, header) if rows else "no jobs yet", *age_line(result.as_of)]
    return "\n".join([*lines, f"more: --cursor {result.next}"] if result.next else lines)


def format_cost(cost: Any) -> str:
    """`0.42 USD`; `-` where no price is known."""
    return "-" if cost is None else f"{cost.usd:.4f} USD"


def age_line(as_of: float | None) -> list[str]:
    """Say when an answer was true, where Prefect could not be asked."""
    if as_of is None:
        return []
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(as_of))
    missing = "since then the Prefect server has not answered; `trainyard up` starts it, and its jobs continue"
    return [f"as of {at}: {missing}"]


def job_state(job: Any) -> str:
    return f"{job.state.value} ({job.detail})" if job.detail else str(job.state.value)


def job_text(result: Job) -> str:
    """Return one job in one line, with what can be done next."""
    step = f" at step {result.step} of {result.total_steps}" if result.total_steps else ""
    after = {"paused": f"\nContinue it by `trainyard jobs resume {result.id}`."}.get(result.state.value, "")
    return message_text(f"{result.name} ({result.id}): {job_state(result)}{step}. {result.message}{after}")


def job_detail_text(result: JobDetail) -> str:
    """Return one job, then its trainers, then how its nodes ended."""
    lines = [job_text(result)]
    lines += [f"{result.id}: names it in commands, the dashboard and REST"]
    lines += [f"{result.run_id}: its run in Prefect, and its folder below runs", result.url]
    lines += [f"group: {result.group}"] if result.group else []
    lines += [f"note: {result.note}"] if result.note else []
    lines += [f"cost: {result.cost.text}"] if result.cost is not None else []
    for training in result.trainings:
        rate = "" if training.learning_rate is None else f", learning rate {training.learning_rate:.3g}"
        loss = "" if training.loss is None else f", loss {training.loss:.4f}"
        checkpoints = f", checkpoints: {', '.join(training.checkpoints)}" if training.checkpoints else ""
        lines.append(f"{training.node}: step {training.step} of {training.total_steps or '?'}{loss}{rate}{checkpoints}")
        lines.append(f"{training.node}: {training.folder}")
    lines += [f"{event.node}: warning: {event.text}" for event in result.divergence]
    lines += [format_remaining(unfinished) for unfinished in result.left]
    return "\n".join([*lines, *node_table(result.nodes), *next_lines(result.next), *age_line(result.as_of)])


def format_remaining(left: Any) -> str:
    """Return the time that a training has left, and how that is known."""
    if left.seconds is None:
        return f"{left.node}: its time is not known before its second step"
    basis = {"steps": "at the pace of its newest steps", "plan": "by the plan"}[left.basis]
    return f"{left.node}: about {format_duration(left.seconds)} left, {basis}"


def noted_text(job: Job) -> str:
    return f"{job.name} ({job.id}): {job.note}" if job.note else f"{job.name} ({job.id}) has no note now"


def log_line_text(line: Any) -> str:
    when = "" if line.time is None else time.strftime("%H:%M:%S ", time.localtime(line.time))
    return f"{when}{line.source}: {line.text}"


def log_text(result: JobLog) -> str:
    return "\n".join(map(log_line_text, result.lines))


SOMETIMES = (
    "eval_loss", "eval_reward_accuracy", "eval_reward_margin", "eval_reward", "reward", "reward_accuracy",
    "reward_margin", "kl",
    "clipped", "policy_loss", "value_loss", "thought_gain",
)  # fmt: skip
"""Columns of the metrics that are shown where a trainer measured them."""


def metrics_text(result: JobMetrics) -> str:
    """Format every step, a table per trainer, for other programs to read; with what only some trainers measure."""
    if result.plot:
        return "\n\n".join(
            draw_curves({training.node: training.points}) for training in result.trainings if training.points
        )
    parts = []
    for training in result.trainings:
        names = ["loss", "learning_rate"]
        names += [name for name in SOMETIMES if any(getattr(point, name) is not None for point in training.points)]
        steps = [(point.step, [getattr(point, name) for name in names]) for point in training.points]
        rows = [(str(step), *("-" if v is None else f"{v:.6g}" for v in values)) for step, values in steps]
        parts.append(f"{training.node}\n{format_table(rows, ('step', *names))}")
    return "\n".join(parts)


def checkpoints_text(result: CheckpointList) -> str:
    """Return the checkpoints as a table."""
    rows = [
        [
            checkpoint.node,
            checkpoint.name,
            str(checkpoint.step),
            f"{checkpoint.bytes:,}",
            "-" if checkpoint.metric is None else f"{checkpoint.metric:.4f}",
            checkpoint.sha256[:12] or "no manifest",
        ]
        for checkpoint in result.checkpoints
    ]
    return (
        format_table(rows, ("trainer", "checkpoint", "step", "bytes", "metric", "sha256")) if rows else "no checkpoints"
    )


def verified_text(result: VerifiedCheckpoints) -> str:
    """Return one line for each checkpoint that was read."""
    lines = [
        f"{checkpoint.node} {checkpoint.name}: {checkpoint.damage or 'whole'}" for checkpoint in result.checkpoints
    ]
    return "\n".join(lines) or "no checkpoints"


def samples_text(result: JobSamples) -> str:
    """Return the answers of each evaluation, the newest first."""
    parts = [
        "\n".join(
            [f"{round.node}, step {round.step}", *(f"> {sample.prompt}\n{sample.answer}" for sample in round.samples)]
        )
        for round in result.rounds
    ]
    return "\n\n".join(parts) or "no samples: set eval.samples of a trainer"


def provenance_text(result: Provenance) -> str:
    """Return where results come from: a table of what was read and one of what was made, then a paragraph per
    trainer.
    """
    lines = [f"chain {result.chain} {result.digest}" if result.digest else "it has not begun"]
    read = [(source.source, source.format, str(source.rows), source.sha256[:12]) for source in result.data]
    lines += [format_table(read, ("source", "format", "rows", "sha256"))] if read else []
    outputs = [
        (
            output.node,
            output.port,
            str(output.rows),
            output.sha256[:12] or "gone",
            output.key[:12],
            "reused" if output.reused else "made",
        )
        for output in result.results
    ]
    lines += [format_table(outputs, ("node", "port", "rows", "sha256", "key", "result"))] if outputs else []
    for training in result.trainings:
        lines.append(f"{training.node}: " + ", ".join(f"{name} {value}" for name, value in training.words.items()))
        lines += [f"  tokens: {counts_text(training.tokens)}"] if training.tokens else []
        lines += [f"  rows: {counts_text(training.rows)}"] if training.rows else []
        versions = ", ".join(f"{name} {version}" for name, version in training.versions.items())
        lines += [f"  versions: {versions}"] if versions else []
        steps = [f"{adapter.sha256[:12]} {adapter.stage} {adapter.method}".rstrip() for adapter in training.lineage]
        lines += [f"  lineage: {' → '.join(steps)}"] if steps else []
        lines += [f"  registered as {', '.join(training.registered)}"] if training.registered else []
    return "\n".join(lines)


def counts_text(counts: Any) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def resumed_text(result: Any) -> str:
    """Return the job, or the end of its run if that was watched."""
    return run_text(result) if hasattr(result, "gate") else job_text(result)


def comparison_text(result: Comparison) -> str:
    """Settings that differ, then of two trainings metrics, benchmarks, answers and, if wanted, the curves."""
    if not result.sides:
        rows = [[setting.name, *map(cell, setting.values)] for setting in result.settings]
        settings = format_table(rows, ("setting", *result.jobs)) if rows else "their settings are the same"
        return f"{settings}\n\n{result.left_out}"
    first, second = names = side_names(result.sides)
    sides = [[name, side.name, side.state, side.adapter_sha256] for name, side in zip(names, result.sides, strict=True)]
    parts = [format_table(sides, ("training", "run", "state", "adapter"))]
    rows = [[setting.name, *map(cell, setting.values)] for setting in result.settings]
    parts.append(format_table(rows, ("setting", first, second)) if rows else "No setting differs.")
    parts.append(format_table([[metric.name, cell(metric.first), cell(metric.second)] for metric in result.metrics],
                       ("metric", first, second)))  # fmt: skip
    if result.benchmarks:
        parts.append(format_table([benchmark_row(benchmark) for benchmark in result.benchmarks],
                           ("benchmark", first, second, "improvement", "better / worse / rows")))  # fmt: skip
    else:
        parts.append("No benchmark is in the reports of both.")
    for sample in result.samples:
        parts.append(
            f"prompt: {sample.prompt}\nright answer: {sample.gold}\n{first}: {sample.first}\n{second}: {sample.second}"
        )
    curves = {name: side.curve for name, side in zip(names, result.sides, strict=True) if side.curve}
    if result.plot:
        parts.append(draw_curves(curves) if curves else "Neither has a curve: their trainings ran elsewhere.")
    return "\n\n".join(parts)


def side_names(sides: Sequence[Any]) -> list[str]:
    """Return a name for each of two trainings: that of its job, with the digest, the trainer or the run if needed."""
    trainers = len({side.trainer for side in sides}) > 1
    for runs in ([find_given_name(side.name) for side in sides], [side.name for side in sides]):
        names = [f"{run}/{side.trainer}" if trainers else run for run, side in zip(runs, sides, strict=True)]
        if len(set(names)) == len(names) and len(set(runs)) == len({side.run for side in sides}):
            return names
    return [f"{side.run[:8]}/{side.trainer}" for side in sides]


def benchmark_row(benchmark: Any) -> list[str]:
    interval = "" if benchmark.low is None else f" [{benchmark.low:+.4f}, {benchmark.high:+.4f}]"
    gain = "not paired: other rows" if benchmark.improvement is None else f"{benchmark.improvement:+.4f}{interval}"
    counts = f"{benchmark.better} / {benchmark.worse} / {benchmark.rows}"
    return [f"{benchmark.name} ({benchmark.metric})", f"{benchmark.first:.4f}", f"{benchmark.second:.4f}", gain, counts]


def cell(value: object) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


LONGEST = 44
"""Characters of a setting's value in the table; `--json` has all of it."""


READ, RUN, ADMIN = Scope

ROWS: dict[str, Operation] = {
    "compare": Operation(
        "Trainings next to each other: settings; of two that ended also metrics, benchmarks, answers, curves.",
        request=CompareInput, run="app.jobs.compare:compare", text=comparison_text, scope=READ,
        example="trainyard compare desk shop/trainer-2 --plot",
        route="GET /api/v1/jobs/compare", heavy=True, tenants=True,
    ),
    "jobs create": Operation(
        "Start one training on one data set, from a file or from parameters.",
        request=CreateInput, run="app.jobs.jobs:create_job", text=run_text, scope=RUN,
        route="POST /api/v1/jobs", status=202, tenants=True, body="parameters", body_schema="spec.job:JobSpec",
    ),
    "jobs list": Operation(
        "The newest jobs, their states and how far they are.",
        request=JobsInput, run="app.jobs.jobs:list_jobs", text=jobs_text, scope=READ,
        route="GET /api/v1/jobs", tenants=True,
    ),
    "jobs show": Operation(
        "One job: state, trainers, checkpoints, nodes and what it was started with.",
        request=JobInput, run="app.jobs.jobs:show_job", text=job_detail_text, scope=READ,
        route="GET /api/v1/jobs/{job}", tenants=True, stream="surfaces.streams:follow_job",
    ),
    "jobs nodes": Operation(
        "The nodes of a run as they are now: state, progress, what each has left.",
        request=JobInput, run="app.jobs.nodes:list_nodes", text=nodes_text, scope=READ,
        route="GET /api/v1/jobs/{job}/nodes", tenants=True,
    ),
    "jobs node": Operation(
        "One node of a run: its settings, its lines and what it has left.",
        request=NodeInput, run="app.jobs.nodes:show_node", text=node_text, scope=READ,
        route="GET /api/v1/jobs/{job}/nodes/{node}", tenants=True,
    ),
    "jobs logs": Operation(
        "A job's log, with what its trainers printed; with --follow, as it comes.",
        request=LogsInput, run="app.jobs.logs:show_logs", text=log_text, scope=READ,
        part_text=log_line_text, route="GET /api/v1/jobs/{job}/logs", tenants=True,
        stream="surfaces.streams:follow_logs",
    ),
    "jobs metrics": Operation(
        "Loss and learning rate of every step of a job.",
        request=MetricsInput, run="app.jobs.jobs:show_metrics", text=metrics_text, scope=READ,
        route="GET /api/v1/jobs/{job}/metrics", tenants=True, stream="surfaces.streams:follow_metrics",
    ),
    "jobs note": Operation(
        "Write what to remember about a job; lists and its page show it.",
        request=NoteInput, run="app.jobs.jobs:note_job", text=noted_text, scope=RUN,
        example='trainyard jobs note desk "too high a learning rate"',
        route="PUT /api/v1/jobs/{job}/note", tenants=True,
    ),
    "jobs pause": Operation(
        "Pause a job: its training saves at the next step, its process ends and its device is free.",
        request=StopInput, run="app.jobs.jobs:pause_job", text=job_text, scope=RUN,
        route="POST /api/v1/jobs/{job}/pause", tenants=True,
    ),
    "jobs resume": Operation(
        "Continue a job that is paused or has ended without a result, from its newest valid checkpoint.",
        request=ResumeInput, run="app.jobs.jobs:resume_job", text=resumed_text, scope=RUN,
        route="POST /api/v1/jobs/{job}/resume", tenants=True,
    ),
    "jobs cancel": Operation(
        "End a job; its training saves first, so that it can be resumed all the same.",
        request=StopInput, run="app.jobs.jobs:cancel_job", text=job_text, scope=RUN,
        route="POST /api/v1/jobs/{job}/cancel", tenants=True,
    ),
    "jobs retry": Operation(
        "Start a new job with the parameters of an earlier one; its newest checkpoint is used, if it left one.",
        request=RetryInput, run="app.jobs.jobs:retry_job", text=run_text, scope=RUN,
        route="POST /api/v1/jobs/{job}/retry", status=202, tenants=True,
    ),
    "jobs checkpoints": Operation(
        "The checkpoints of a job: step, size, metric and hash.",
        request=CheckpointsInput, run="app.jobs.checkpoints:list_checkpoints", text=checkpoints_text, scope=READ,
        route="GET /api/v1/jobs/{job}/checkpoints", tenants=True,
    ),
    "jobs verify": Operation(
        "Read a job's checkpoints and compare each file with the hash in its manifest.",
        request=VerifyInput, run="app.jobs.checkpoints:verify_checkpoints", text=verified_text, scope=READ,
        route="POST /api/v1/jobs/{job}/verify", tenants=True, heavy=True,
    ),
    "jobs samples": Operation(
        "The model's answers to held-out prompts at each evaluation of a job.",
        request=SamplesInput, run="app.jobs.samples:show_samples", text=samples_text, scope=READ,
        route="GET /api/v1/jobs/{job}/samples", tenants=True,
    ),
    "jobs provenance": Operation(
        "Where a job's results come from: data and digests, results of nodes, ledger, versions, lineage.",
        request=JobInput, run="app.jobs.provenance:show_provenance", text=provenance_text, scope=READ,
        route="GET /api/v1/jobs/{job}/provenance", tenants=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
