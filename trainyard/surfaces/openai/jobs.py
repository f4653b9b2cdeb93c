"""`/fine_tuning/jobs`: jobs of this home, started, shown and steered in OpenAI's shape.

A record has the request; whatever a job is doing is read from the job. Its name contains the id of the record, so that
the job is found although the service ended between the start and the note of its id.
"""

from __future__ import annotations

import time
from typing import Any

from trainyard.app.jobs.jobs import Job, JobDetail
from trainyard.errors import NotFound, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Point
from trainyard.stores.openai_records import JOB_ID_BYTES, FineTuningRecord, WireJobError, draw_id
from trainyard.surfaces.openai.calls import WireCall, page_of, run_operation
from trainyard.surfaces.openai.errors import WireError, translate_error
from trainyard.surfaces.openai.files import find_rows, path_of
from trainyard.surfaces.openai.job_bodies import CreateJobBody, JobsQuery
from trainyard.surfaces.openai.job_plans import JobFiles, method_of, model_name, plan_job, slug_of
from trainyard.surfaces.openai.results import keep_results
from trainyard.surfaces.openai.training_files import find_fault

STARTING_S = 120.0
"""A record without a job after this time is of a start that was interrupted."""
STATUS = {
    JobState.PENDING: "queued",
    JobState.RUNNING: "running",
    JobState.PAUSED: "queued",
    JobState.COMPLETED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELED: "cancelled",
}
"""OpenAI has no word for a job that is paused."""
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
ORGANIZATION = "trainyard"


def create_job(call: WireCall) -> JsonObject:
    """Start a job. A training file with a fault makes a job that has failed, as OpenAI's does.

    Raises `WireError` 400 for a refused file, 404 for a file that is not there.
    """
    call.require_scope("jobs create")
    body = call.parse_body(CreateJobBody)
    files = JobFiles(
        find_rows(call, body.training_file, "training_file"),
        find_rows(call, body.validation_file, "validation_file") if body.validation_file is not None else None,
    )
    job_id = draw_id("ftjob-", JOB_ID_BYTES)
    name = "-".join(filter(None, (slug_of(body.suffix or ""), job_id.partition("-")[2])))
    planned = plan_job(body, files, name, call.settings)
    record = FineTuningRecord(
        id=job_id,
        created=time.time(),
        request=planned.request,
        name=name,
        error=find_fault_of_files(call, files, method_of(body).type, planned.answer),
        model=model_name(body, call.settings.tenant, job_id),
    )
    call.jobs.create(record)
    if record.error is not None:
        return describe_job(record, None)
    try:
        started = run_operation("jobs create", call.context, parameters=planned.parameters, yes=True)
    except TrainyardError as error:
        call.jobs.remove(job_id)
        raise translate_refusal(error) from error
    return describe_job(call.jobs.update(record, job=started.id), None)


def find_fault_of_files(call: WireCall, files: JobFiles, method: str, answer: str | None) -> WireJobError | None:
    """Return why a job fails on one of its files; None if it does not."""
    for file, param in ((files.training, "training_file"), (files.validation, "validation_file")):
        if file is not None:
            with path_of(call, file).open("rb") as source:
                fault = find_fault(source, method, param, answer)
            if fault is not None:
                return fault
    return None


def translate_refusal(error: TrainyardError) -> WireError:
    """Return why a job was not started, with the field of the body that is meant where it is known."""
    refused = translate_error(error)
    if error.code == "E-MODEL-NOT-FOUND":
        refused.param, refused.code = "model", "model_not_available"
    return refused


def find_record(call: WireCall) -> FineTuningRecord:
    """Return the record of the job that a path names. Raises `WireError` 404."""
    job_id = call.path["fine_tuning_job_id"]
    record = call.jobs.read(job_id)
    if record is None:
        text = f"Could not find fine tune: {job_id[:100]}"
        raise WireError(404, text, param="fine_tuning_job_id", code="fine_tune_not_found")
    return record


def find_job(call: WireCall, record: FineTuningRecord) -> JobDetail | None:
    """Return the job of a record; None for one that was not started."""
    if record.error is not None:
        return None
    try:
        job: JobDetail = run_operation("jobs show", call.context, job=record.job or record.name)
    except NotFound:
        return None
    except TrainyardError as error:
        raise translate_error(error) from error
    return job


def show_job(call: WireCall) -> JsonObject:
    record = find_record(call)
    job = find_job(call, record)
    return describe_job(with_results(call, record, job), job)


def with_results(call: WireCall, record: FineTuningRecord, job: JobDetail | None) -> FineTuningRecord:
    """Return the record of a job; of one that has completed, with the file of its metrics."""
    if job is None or job.state is not JobState.COMPLETED or record.result_file:
        return record
    try:
        return keep_results(call, record, read_points(call, job), end_of(job))
    except TrainyardError as error:
        raise translate_error(error) from error


def read_points(call: WireCall, job: JobDetail | None, most: int | None = None) -> list[Point]:
    """Return the steps of a job's trainer, of a long one about as many as `most`."""
    if job is None:
        return []
    try:
        metrics = run_operation("jobs metrics", call.context, job=job.id, max_points=most)
    except NotFound:  # before the first step
        return []
    except TrainyardError as error:
        raise translate_error(error) from error
    return [point for training in metrics.trainings for point in training.points]


def list_jobs(call: WireCall) -> JsonObject:
    """Return a page of the jobs that were created over the wire, the newest first."""
    call.require_scope("jobs list")
    plain = {key: value for key, value in call.query.items() if not key.startswith("metadata")}
    query = WireCall(call.context, call.path, plain).parse_query(JobsQuery)
    filters = metadata_filter(call)
    records = call.jobs.list(lambda record: has_metadata(record, filters))
    page, has_more = page_of(records, query.after, query.limit, "fine-tuning job")
    pairs = ((record, find_job(call, record)) for record in page)
    jobs = [describe_job(with_results(call, record, job), job) for record, job in pairs]
    return {"object": "list", "data": jobs, "has_more": has_more}


def metadata_filter(call: WireCall) -> dict[str, str] | None:
    """Return what `metadata[key]=value` of the query says; None for `metadata=null`. Raises `WireError` 400."""
    if call.query.get("metadata") == "null":
        return None
    filters = {}
    for key, value in call.query.items():
        if key.startswith("metadata["):
            filters[key.removeprefix("metadata[").removesuffix("]")] = value
        elif key.startswith("metadata"):
            raise WireError(400, f"Unknown parameter: '{key[:100]}'.", param=key[:100], code="unknown_parameter")
    return filters


def has_metadata(record: FineTuningRecord, filters: dict[str, str] | None) -> bool:
    metadata = record.request.get("metadata") or {}
    return not metadata if filters is None else all(metadata.get(key) == value for key, value in filters.items())


def steer_job(call: WireCall, verb: str, allowed: tuple[JobState, ...]) -> JsonObject:
    """Cancel, pause or resume a job. Raises `WireError` 400 for one in another state."""
    call.require_scope(f"jobs {verb}")
    record = find_record(call)
    job = find_job(call, record)
    if job is None or job.state not in allowed:
        status = describe_job(record, job)["status"]
        state = "paused" if job is not None and job.state is JobState.PAUSED else status
        raise WireError(400, f"Job {record.id} is {state} and cannot be {PAST[verb]}.", code="invalid_job_state")
    options = {} if verb == "resume" else {"wait": False}
    call.run_operation(f"jobs {verb}", None, None, job=job.id, **options)
    return describe_job(record, find_job(call, record))


PAST = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def cancel_job(call: WireCall) -> JsonObject:
    return steer_job(call, "cancel", (JobState.PENDING, JobState.RUNNING, JobState.PAUSED))


def pause_job(call: WireCall) -> JsonObject:
    return steer_job(call, "pause", (JobState.PENDING, JobState.RUNNING))


def resume_job(call: WireCall) -> JsonObject:
    return steer_job(call, "resume", (JobState.PAUSED,))


def describe_job(record: FineTuningRecord, job: JobDetail | Job | None) -> JsonObject:
    """Return a job in OpenAI's shape."""
    request = record.request
    method = request["method"]
    error, status = error_of(record, job), status_of(record, job)
    ended = job is not None and job.state in ENDED
    finished = end_of(job) if ended and job is not None else record.created if error is not None else None
    return {
        "object": "fine_tuning.job", "id": record.id, "created_at": int(record.created), "model": request["model"],
        "status": status, "training_file": request["training_file"],
        "validation_file": request.get("validation_file"),
        "hyperparameters": top_hyperparameters(method), "method": method, "seed": request["seed"],
        "fine_tuned_model": record.model if status == "succeeded" and not record.is_deleted else None,
        "finished_at": int(finished) if finished is not None else None, "organization_id": ORGANIZATION,
        "result_files": [record.result_file] if record.result_file else [],
        "trained_tokens": trained_tokens(job), "integrations": [], "metadata": request.get("metadata"),
        "estimated_finish": estimated_finish(job),
        "error": error.model_dump() if error is not None else None,
    }  # fmt: skip


def top_hyperparameters(method: JsonObject) -> JsonObject:
    """Return the deprecated field, which has what all methods have."""
    hyper = method[method["type"]]["hyperparameters"]
    return {name: hyper[name] for name in ("n_epochs", "batch_size", "learning_rate_multiplier") if name in hyper}


def status_of(record: FineTuningRecord, job: Job | None) -> str:
    if job is not None:
        return STATUS[job.state]
    if record.error is None and time.time() - record.created < STARTING_S:
        return "validating_files" if not record.job else "queued"
    return "failed"


def error_of(record: FineTuningRecord, job: Job | None) -> WireJobError | None:
    """Return why a job failed; None for one that has not."""
    if record.error is not None or (job is not None and job.state is not JobState.FAILED):
        return record.error
    if job is not None:
        return WireJobError(code="training_failed", message=" ".join(filter(None, (job.detail, job.message))))
    if status_of(record, job) == "failed":
        text = "The job was not started, or its run was removed."
        return WireJobError(code="server_error", message=text)
    return None


def end_of(job: Job) -> float:
    """Return when a job ended."""
    return (job.started or job.created or 0.0) + job.seconds


def trained_tokens(job: Any) -> int | None:
    """Return the tokens that the training of a completed job went through, over all epochs."""
    if not isinstance(job, JobDetail) or job.state is not JobState.COMPLETED:
        return None
    counts = [node.facts.get("tokens") for node in job.nodes if node.type == "trainer"]
    return sum(sum(int(number) for number in tokens.values()) for tokens in counts if isinstance(tokens, dict))


def estimated_finish(job: Any) -> int | None:
    if not isinstance(job, JobDetail) or job.state is not JobState.RUNNING:
        return None
    seconds = [left.seconds for left in job.left if left.seconds is not None]
    return int(time.time() + sum(seconds)) if seconds else None
