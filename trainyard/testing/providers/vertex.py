"""A double of Vertex AI's tuning jobs and of their bucket; fields of a body are those of its REST reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import TOKENS, Call, JobDouble, ProviderDouble, Refusal, Reply

PARENT = "projects/acme/locations/us-central1"
LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")
SIZES = re.compile(r"ADAPTER_SIZE_(ONE|TWO|FOUR|EIGHT|SIXTEEN|THIRTY_TWO)")
FIELDS: Mapping[str, Any] = {
    "baseModel": str, "tunedModelDisplayName": str, "description": str, "labels": dict,
    "supervisedTuningSpec": {
        "trainingDatasetUri": str, "validationDatasetUri": str, "exportLastCheckpointOnly": bool,
        "hyperParameters": {"epochCount": str, "learningRateMultiplier": float, "adapterSize": str},
    },
    "preferenceOptimizationSpec": {
        "trainingDatasetUri": str, "validationDatasetUri": str, "exportLastCheckpointOnly": bool,
        "hyperParameters": {"epochCount": str, "learningRateMultiplier": float, "adapterSize": str, "beta": float},
    },
}  # fmt: skip
"""Field -> its type, or the fields below it."""


class VertexDouble(ProviderDouble):
    """Vertex AI and Cloud Storage on one free port."""

    routes = (
        ("POST", r"/upload/storage/v1/b/([\w-]+)/o", "take_file"),
        ("POST", rf"/v1/{PARENT}/tuningJobs", "create_job"),
        ("GET", rf"/v1/{PARENT}/tuningJobs", "list_all"),
        ("GET", rf"/v1/({PARENT}/tuningJobs/\d+)", "show"),
        ("POST", rf"/v1/({PARENT}/tuningJobs/\d+):cancel", "cancel"),
    )
    walk = ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED")
    failed, canceled = "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"

    def refuse(self, status: int, message: str) -> Reply:
        return Reply(status, {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}})

    def take_file(self, call: Call, bucket: str) -> Reply:
        self.files[f"gs://{bucket}/{call.query['name']}"] = call.content
        return Reply(200, {"name": call.query["name"], "bucket": bucket})

    def create_job(self, call: Call) -> Reply:
        body = call.json
        check_fields(body, FIELDS, "")
        specs = [name for name in ("supervisedTuningSpec", "preferenceOptimizationSpec") if name in body]
        if len(specs) != 1:
            raise Refusal(400, "A job has exactly one spec.")
        if body[specs[0]]["trainingDatasetUri"] not in self.files:
            raise Refusal(400, "The training data are not in the bucket.")
        size = body[specs[0]].get("hyperParameters", {}).get("adapterSize", "ADAPTER_SIZE_ONE")
        if not SIZES.fullmatch(size):
            raise Refusal(400, f"There is no adapter size {size}.")
        for name, value in body.get("labels", {}).items():
            if not (LABEL.fullmatch(name) and LABEL.fullmatch(value)):
                raise Refusal(400, f"The label {name}={value} is not allowed.")
        return Reply(200, describe(self.add_job(f"{PARENT}/tuningJobs/{1000 + len(self.jobs)}", body)))

    def list_all(self, call: Call) -> Reply:
        return Reply(200, {"tuningJobs": [describe(job) for job in self.list_visible()]})

    def show(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.read_job(job_id)))

    def cancel(self, call: Call, job_id: str) -> Reply:
        self.cancel_job(job_id)
        return Reply(200, {})


def check_fields(body: JsonObject, fields: Mapping[str, Any], where: str) -> None:
    """Raise `Refusal` (400) for a field that the reference does not have, or of another type."""
    for name, value in body.items():
        if name not in fields:
            raise Refusal(400, f"There is no field {where}{name}.")
        expected = fields[name]
        if isinstance(expected, Mapping):
            check_fields(value, expected, f"{where}{name}.")
        elif not isinstance(value, expected):
            raise Refusal(400, f"{where}{name} is not a {expected.__name__}.")


def describe(job: JobDouble) -> JsonObject:
    """Return a job as Vertex shows it."""
    values: JsonObject = {"name": job.id, "state": job.word, **job.body}
    if job.word == "JOB_STATE_SUCCEEDED":
        stats = {"supervisedTuningDataStats": {"totalBillableTokenCount": str(TOKENS)}}
        model = {"model": f"{PARENT}/models/1@1", "endpoint": f"{PARENT}/endpoints/1",
                 "checkpoints": [{"checkpointId": "1", "epoch": "1", "step": "10"}]}  # fmt: skip
        values |= {"tunedModel": model, "tuningDataStats": stats}
    if job.word == "JOB_STATE_FAILED":
        values["error"] = {"code": 13, "message": "The job failed."}
    return values
