"""Requests about jobs. A job is named by its id, its name, or a beginning of one that fits only one job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.chains import GROUP_NAME, PARAMETERS, Group
from trainyard.api.requests.fields import Argument, Option
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage
from trainyard.spec.states import JobState


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
    yes: Annotated[bool, Option("-y", "--yes")] = Field(
        False, description="Train also on fewer rows than were asked for, or than a verdict needs."
    )
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
    refresh: Annotated[bool, Option("--refresh/--no-refresh")] = Field(
        False, description="Make every result again, also those that are finished."
    )
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
    limit: int = Field(10, ge=1, le=200, description="At most so many evaluations, the newest first.")


class JobsInput(Request):
    state: JobState | None = Field(None, description="Only jobs in this state.")
    name: str | None = Field(None, min_length=1, description="Only jobs of this name.")
    tenant: Annotated[str | None, Option(completes="tenant")] = Field(None, description="Only jobs of this tenant.")
    backend: BackendName | None = Field(None, description="Only jobs whose last trainer runs on it.")
    stage: Stage | None = Field(None, description="Only jobs whose last trainer has this objective.")
    group: str | None = Field(None, pattern=GROUP_NAME, description="Only jobs of this group, or of this sweep.")
    text: str | None = Field(
        None, min_length=1, max_length=200, description="Only with this text in name, id, tags, base model or message."
    )
    limit: int = Field(50, ge=1, le=10_000, description="At most so many.")
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
    limit_bytes: int = Field(65_536, ge=1, le=4_194_304, description="At most so many bytes of that log.")


class MetricsInput(JobInput):
    node: str | None = Field(None, description="Only this trainer.")
    max_points: int | None = Field(None, ge=1, le=100_000, description="At most so many points; default: each step.")
    since_step: int | None = Field(None, ge=0, description="Only from this step on.")
    until_step: int | None = Field(None, ge=0, description="Only up to this step.")
    plot: Annotated[bool, Option(local=True)] = Field(
        False, description="Draw the curves instead of listing the steps."
    )
