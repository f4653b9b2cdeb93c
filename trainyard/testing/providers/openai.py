"""A double of OpenAI's fine-tuning API: files, jobs, events by pages (routes and types of `openai` 3.57)."""

from __future__ import annotations

import re
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import TOKENS, Call, JobDouble, ProviderDouble, Refusal, Reply

MODELS = ("gpt-4o-mini-2024-07-18", "gpt-4o-2024-08-06", "gpt-3.5-turbo", "meta-llama/Llama-3-8b")
FORM_FILE = re.compile(rb'name="file"; filename="[^"]*"\r\n(?:[^\r\n]+\r\n)*\r\n')
SUFFIX_LENGTH = 64


class OpenAiDouble(ProviderDouble):
    """OpenAI on a free port; a client's `base_url` is `url` with `/v1`."""

    routes = (
        ("POST", r"/v1/files", "take_file"),
        ("POST", r"/v1/fine_tuning/jobs", "create_job"),
        ("GET", r"/v1/fine_tuning/jobs", "list_all"),
        ("GET", r"/v1/fine_tuning/jobs/([\w-]+)", "show"),
        ("GET", r"/v1/fine_tuning/jobs/([\w-]+)/events", "list_events"),
        ("POST", r"/v1/fine_tuning/jobs/([\w-]+)/cancel", "cancel"),
    )
    walk = ("validating_files", "queued", "running", "succeeded")
    file_limit = 512 << 20
    models = MODELS
    is_spent = False
    """Whether the credit of the account is used up."""

    def take_file(self, call: Call) -> Reply:
        boundary = call.headers["content-type"].partition("boundary=")[2].encode()
        match = FORM_FILE.search(call.content)
        if match is None:
            raise Refusal(400, "The form has no file.")
        content = call.content[match.end() :].partition(b"\r\n--" + boundary)[0]
        self.check_rows(content)
        file_id = f"file-{len(self.files):04d}"
        self.files[file_id] = content
        return Reply(200, {"id": file_id, "object": "file", "bytes": len(content), "created_at": 1,
                           "filename": "rows.jsonl", "purpose": "fine-tune", "status": "processed"})  # fmt: skip

    def create_job(self, call: Call) -> Reply:
        body = validate_body(call.json)
        if body["training_file"] not in self.files:
            raise Refusal(400, f"There is no file {body['training_file']}.")
        self.require_model(body["model"])
        if self.is_spent:
            raise Refusal(429, "You exceeded your current quota, please check your plan.", "insufficient_quota")
        if len(body.get("suffix") or "") > SUFFIX_LENGTH:
            raise Refusal(400, f"The suffix is longer than {SUFFIX_LENGTH} characters.")
        return Reply(200, describe(self.add_job(f"ftjob-{len(self.jobs):04d}", body)))

    def list_all(self, call: Call) -> Reply:
        jobs = [describe(job) for job in self.list_visible()]
        return Reply(200, {"object": "list", "data": jobs, "has_more": False})

    def show(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.read_job(job_id)))

    def list_events(self, call: Call, job_id: str) -> Reply:
        """Return a page of events, the newest first, after the one that `after` names."""
        count, limit = self.jobs[job_id].events, int(call.query.get("limit", "20"))
        after = int(call.query["after"].rpartition("-")[2]) if "after" in call.query else count
        numbers = range(after - 1, max(after - 1 - limit, -1), -1)
        events = [
            {"id": f"ftevent-{number}", "object": "fine_tuning.job.event", "created_at": number, "level": "info",
             "message": f"Step {number + 1}", "type": "metrics",
             "data": {"step": number + 1, "train_loss": 2.0 / (number + 1), "total_steps": count}}
            for number in numbers
        ]  # fmt: skip
        return Reply(200, {"object": "list", "data": events, "has_more": after - 1 - limit > -1})

    def cancel(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.cancel_job(job_id)))


def validate_body(body: JsonObject) -> JsonObject:
    """Return the body of a job, valid by the client's own type of it. Raises `Refusal` (400)."""
    from openai.types.fine_tuning.job_create_params import JobCreateParams  # an optional package
    from pydantic import TypeAdapter, ValidationError, with_config

    strict = with_config({"extra": "forbid"})(JobCreateParams)
    try:
        TypeAdapter(strict).validate_python(body)
    except ValidationError as error:
        raise Refusal(400, str(error)) from error
    return body


def describe(job: JobDouble) -> JsonObject:
    """Return a job as OpenAI shows it."""
    body, done = job.body, job.word == "succeeded"
    values: dict[str, Any] = {
        "id": job.id, "object": "fine_tuning.job", "created_at": 1, "model": body["model"], "organization_id": "org",
        "status": job.word, "training_file": body["training_file"], "validation_file": body.get("validation_file"),
        "hyperparameters": {"n_epochs": "auto"}, "result_files": [], "seed": body.get("seed", 0),
        "method": body.get("method"), "metadata": body.get("metadata"), "error": None,
        "fine_tuned_model": f"ft:{body['model']}:org:{body.get('suffix')}:double" if done else None,
        "trained_tokens": TOKENS if done else None,
    }  # fmt: skip
    if job.word == "failed":
        values["error"] = {"code": "server_error", "message": "The job failed.", "param": None}
    return values
