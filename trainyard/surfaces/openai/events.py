"""Events and checkpoints of a fine-tuning job, read from the job: its times, the curve of its trainer, its end."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.app.jobs.jobs import JobDetail
from trainyard.json_types import JsonObject
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point
from trainyard.stores.openai_records import FineTuningRecord
from trainyard.surfaces.openai.calls import WireCall, list_of, page_of
from trainyard.surfaces.openai.job_bodies import CheckpointsQuery, EventsQuery
from trainyard.surfaces.openai.jobs import describe_job, end_of, find_job, find_record, read_points

MOST_STEPS = 1000
ENDS = {
    "succeeded": "The job has successfully completed",
    "cancelled": "Fine-tuning job cancelled",
}


class WireEvent(NamedTuple):
    """An event, oldest first by its place."""

    id: str
    time: float
    message: str
    level: str = "info"
    data: JsonObject | None = None


class WireCheckpoint(NamedTuple):
    id: str
    created: float
    step: int
    model: str


def list_events(call: WireCall) -> JsonObject:
    """Return a page of a job's events, the newest first."""
    query, record = call.parse_query(EventsQuery), find_record(call)
    events = read_events(call, record, find_job(call, record))
    page, has_more = page_of(events[::-1], query.after, query.limit, "event")
    return {"object": "list", "data": [describe_event(event) for event in page], "has_more": has_more}


def describe_event(event: WireEvent) -> JsonObject:
    kind = "message" if event.data is None else "metrics"
    return {
        "object": "fine_tuning.job.event", "id": event.id, "created_at": int(event.time), "level": event.level,
        "message": event.message, "type": kind, "data": event.data or {},
    }  # fmt: skip


def read_events(call: WireCall, record: FineTuningRecord, job: JobDetail | None) -> list[WireEvent]:
    """Return what has happened to a job, the oldest first. Ids stay as the list grows."""
    file, number = record.request["training_file"], record.id.partition("-")[2]
    held_out = record.request.get("validation_file")
    validation = f" and validation file: {held_out}" if held_out else ""
    events = [
        WireEvent(f"ftevent-{number}-created", record.created, f"Created fine-tuning job: {record.id}"),
        WireEvent(f"ftevent-{number}-validating", record.created, f"Validating training file: {file}{validation}"),
    ]
    described = describe_job(record, job)
    if job is not None and job.started is not None:
        text = "Files validated, job is queued"
        events.append(WireEvent(f"ftevent-{number}-validated", record.created, text))
        events.append(WireEvent(f"ftevent-{number}-started", job.started, "Fine-tuning job started"))
    points = read_points(call, job, MOST_STEPS)
    total = next((training.total_steps for training in job.trainings), None) if job is not None else None
    for point in points:
        metrics = metrics_of(point) | ({"total_steps": total} if total is not None else {})
        losses = (("training", point.loss), ("validation", point.eval_loss))
        texts = [f"{name} loss={loss:.2f}" for name, loss in losses if loss is not None]
        if point.eval_reward is not None:
            texts.append(f"validation reward={point.eval_reward:.2f}")
        text = f"Step {point.step}/{total or '?'}{': ' if texts else ''}{', '.join(texts)}"
        events.append(WireEvent(f"ftevent-{number}-step{point.step}", point.time, text, data=metrics))
    if job is not None and job.state is JobState.PAUSED:
        events.append(WireEvent(f"ftevent-{number}-paused", end_of(job), "Fine-tuning job paused"))
    if described["status"] == "succeeded":
        text = f"New fine-tuned model created: {record.model}"
        events.append(WireEvent(f"ftevent-{number}-model", described["finished_at"], text))
    if described["status"] in ENDS:
        events.append(WireEvent(f"ftevent-{number}-ended", described["finished_at"], ENDS[described["status"]]))
    if described["error"] is not None:
        when = described["finished_at"] or record.created
        events.append(WireEvent(f"ftevent-{number}-failed", when, described["error"]["message"], "error"))
    return events


def metrics_of(point: Point) -> JsonObject:
    values = {
        "step": point.step, "train_loss": point.loss, "valid_loss": point.eval_loss, "reward": point.reward,
        "valid_reward": point.eval_reward,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def metrics_of_checkpoint(point: Point) -> JsonObject:
    """Return the metrics of a step; a validation loss here is always that of the whole file."""
    whole: JsonObject = {} if point.eval_loss is None else {"full_valid_loss": point.eval_loss}
    if point.eval_reward is not None:
        whole["full_valid_reward"] = point.eval_reward
    return metrics_of(point) | whole


def list_checkpoints(call: WireCall) -> JsonObject:
    """Return a page of a job's checkpoints, the newest first; that of the last step is the fine-tuned model."""
    query, record = call.parse_query(CheckpointsQuery), find_record(call)
    job = find_job(call, record)
    points = {point.step: point for point in read_points(call, job, MOST_STEPS)}
    page, has_more = page_of(read_checkpoints(call, record, job), query.after, query.limit, "checkpoint")
    return list_of([describe_checkpoint(record, entry, points.get(entry.step)) for entry in page], has_more)


def read_checkpoints(call: WireCall, record: FineTuningRecord, job: JobDetail | None) -> list[WireCheckpoint]:
    if job is None:
        return []
    number = record.id.partition("-")[2]
    checkpoints = call.run_operation("jobs checkpoints", job=job.id).checkpoints
    entries = {
        entry.step: WireCheckpoint(
            f"ftckpt_{number}{entry.step:08d}",
            entry.created or record.created,
            entry.step,
            f"{record.model}:ckpt-step-{entry.step}",
        )
        for entry in checkpoints
    }
    if job.state is JobState.COMPLETED and not record.is_deleted:
        step = max((training.step for training in job.trainings), default=0)
        entries[step] = WireCheckpoint(f"ftckpt_{number}{step:08d}", end_of(job), step, record.model)
    return [entries[step] for step in sorted(entries, reverse=True)]


def describe_checkpoint(record: FineTuningRecord, checkpoint: WireCheckpoint, point: Point | None) -> JsonObject:
    return {
        "object": "fine_tuning.job.checkpoint", "id": checkpoint.id, "created_at": int(checkpoint.created),
        "fine_tuned_model_checkpoint": checkpoint.model, "fine_tuning_job_id": record.id,
        "metrics": metrics_of_checkpoint(point) if point is not None else {"step": checkpoint.step},
        "step_number": checkpoint.step,
    }  # fmt: skip
