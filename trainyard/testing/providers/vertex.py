"""A double of Vertex AI's tuning jobs and of their bucket; bodies and answers fit the types of `google-genai` 3.6."""

from __future__ import annotations

import re

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import KEY, TOKENS, Call, JobDouble, ProviderDouble, Refusal, Reply

PARENT = r"projects/acme/locations/[\w-]+"
GEMINI = "gemini-2.5-flash"
LOCATIONS = {"us-central1": (GEMINI, "meta-llama/Llama-3-8b"), "europe-west4": (GEMINI,)}
"""Location -> the models that it tunes."""
LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class VertexDouble(ProviderDouble):
    """Vertex AI and Cloud Storage on one free port."""

    routes = (
        ("POST", r"/upload/storage/v1/b/([\w-]+)/o", "take_file"),
        ("POST", rf"/v1/{PARENT}/tuningJobs", "create_job"),
        ("GET", rf"/v1/{PARENT}/tuningJobs", "list_all"),
        ("GET", rf"/v1/({PARENT}/tuningJobs/\d+)", "show"),
        ("POST", r"/token", "grant_token"),
        ("POST", rf"/v1/({PARENT}/tuningJobs/\d+):cancel", "cancel"),
    )
    walk = ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED")
    failed, canceled = "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"

    refused_accounts = False
    """Whether the keys of service accounts have expired."""

    def check_key(self, call: Call) -> None:
        if call.path != "/token":
            super().check_key(call)

    def grant_token(self, call: Call) -> Reply:
        """Return an access token to a service account, as Google's token server does."""
        if self.refused_accounts:
            return Reply(400, {"error": "invalid_grant", "error_description": "Invalid JWT: the key has expired."})
        return Reply(200, {"access_token": KEY, "expires_in": 3600, "token_type": "Bearer"})

    def refuse(self, status: int, message: str, code: str | None = None) -> Reply:
        word = code or "INVALID_ARGUMENT"
        return Reply(status, {"error": {"code": status, "message": message, "status": word}})

    def take_file(self, call: Call, bucket: str) -> Reply:
        if len(call.content) > self.file_limit:
            raise Refusal(413, "The object is too large.")
        self.require_room(call.content)
        self.files[f"gs://{bucket}/{call.query['name']}"] = call.content
        return Reply(200, {"name": call.query["name"], "bucket": bucket})

    def create_job(self, call: Call) -> Reply:
        body = validate_job(call.json)
        specs = [name for name in ("supervisedTuningSpec", "preferenceOptimizationSpec") if name in body]
        if len(specs) != 1:
            raise Refusal(400, "A job has exactly one spec.")
        if body[specs[0]]["trainingDatasetUri"] not in self.files:
            raise Refusal(400, "The training data are not in the bucket.")
        parent = call.path.removeprefix("/v1/").removesuffix("/tuningJobs")
        location = parent.rpartition("/")[2]
        if body["baseModel"] not in LOCATIONS.get(location, ()):
            raise Refusal(400, f"Base model {body['baseModel']} is not supported in {location}.")
        for name, value in body.get("labels", {}).items():
            if not (LABEL.fullmatch(name) and LABEL.fullmatch(value)):
                raise Refusal(400, f"The label {name}={value} is not allowed.")
        return Reply(200, describe(self.add_job(f"{parent}/tuningJobs/{1000 + len(self.jobs)}", body)))

    def list_all(self, call: Call) -> Reply:
        return Reply(200, {"tuningJobs": [describe(job) for job in self.list_visible()]})

    def show(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.read_job(job_id)))

    def cancel(self, call: Call, job_id: str) -> Reply:
        self.cancel_job(job_id)
        return Reply(200, {})


def validate_job(body: JsonObject) -> JsonObject:
    """Return a tuning job, valid by the official client's type of it. Raises `Refusal` (400)."""
    from google.genai.types import TuningJob  # an optional package
    from pydantic import ValidationError  # next to the client's types

    try:
        job = TuningJob.model_validate(body)
    except ValidationError as error:
        raise Refusal(400, str(error)) from error
    spec = job.supervised_tuning_spec or job.preference_optimization_spec
    size = spec.hyper_parameters.adapter_size if spec is not None and spec.hyper_parameters is not None else None
    if size is not None and size not in type(size).__members__.values():  # the client lets unknown sizes pass
        raise Refusal(400, f"There is no adapter size {size.value}.")
    return body


def describe(job: JobDouble) -> JsonObject:
    """Return a job as Vertex shows it."""
    values: JsonObject = {"name": job.id, "state": job.word, **job.body}
    if job.word == "JOB_STATE_SUCCEEDED":
        stats = {"supervisedTuningDataStats": {"totalBillableTokenCount": str(TOKENS)}}
        parent = job.id.partition("/tuningJobs")[0]
        model = {"model": f"{parent}/models/1@1", "endpoint": f"{parent}/endpoints/1",
                 "checkpoints": [{"checkpointId": "1", "epoch": "1", "step": "10"}]}  # fmt: skip
        values |= {"tunedModel": model, "tuningDataStats": stats}
    if job.word == "JOB_STATE_FAILED":
        values["error"] = {"code": 13, "message": "The job failed."}
    validate_job({name: value for name, value in values.items() if name != "state"})  # a fault's state is unknown
    return values
