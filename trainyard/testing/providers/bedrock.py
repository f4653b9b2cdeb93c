"""A double of Amazon Bedrock's customization jobs and of the bucket next to it, bodies validated by botocore's model.

moto has these routes, but its jobs stay in progress for ever, names are not checked, and the same token is refused
where AWS answers with the first job.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

from trainyard.json_types import JsonObject
from trainyard.testing.providers.double import EXPIRED_KEY, KEY, Call, JobDouble, ProviderDouble, Refusal, Reply

ARN = "arn:aws:bedrock:us-east-1:123456789012:model-customization-job/"
JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9\+\-\.])*")
TIME = "2026-11-28T12:00:00Z"
LLAMA = ("meta.llama3-1-8b-instruct-v1:0", "meta-llama/Llama-3-8b")
REGIONS = {"us-east-1": ("amazon.nova-lite-v1:0", *LLAMA), "us-west-2": LLAMA, "eu-central-1": ()}
"""Region -> the models that it customizes."""
CREDENTIAL = re.compile(r"Credential=([^/]*)/\d+/([^/]+)/")
HYPERPARAMETERS = {"epochCount", "batchSize", "learningRate", "learningRateWarmupSteps"}


class BedrockDouble(ProviderDouble):
    """Bedrock and S3 on one free port."""

    routes = (
        ("PUT", r"/rows/(.+)", "take_file"),
        ("POST", r"/model-customization-jobs", "create_job"),
        ("GET", r"/model-customization-jobs", "list_all"),
        ("GET", r"/model-customization-jobs/([^/]+)", "show"),
        ("POST", r"/model-customization-jobs/([^/]+)/stop", "cancel"),
    )
    walk = ("InProgress", "InProgress", "Completed")
    failed, canceled = "Failed", "Stopped"
    storage_code = "QuotaExceeded"

    def check_key(self, call: Call) -> None:
        match = CREDENTIAL.search(call.headers.get("authorization", ""))
        if match is not None and match[1] == EXPIRED_KEY:
            raise Refusal(403, "The security token included in the request is expired", "ExpiredTokenException")
        if match is None or match[1] != KEY:
            text = f"The security token of {match[1] if match else ''} included in the request is invalid."
            raise Refusal(403, text, "UnrecognizedClientException")

    def refuse(self, status: int, message: str, code: str | None = None) -> Reply:
        code = code or "ValidationException"
        if self.calls[-1].path.startswith("/rows/"):  # the bucket's
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
            return Reply(status, text.encode(), {"Content-Type": "application/xml"})
        return Reply(status, {"message": message}, {"x-amzn-ErrorType": code})

    def take_file(self, call: Call, name: str) -> Reply:
        if len(call.content) > self.file_limit:
            raise Refusal(400, "Your proposed upload exceeds the maximum allowed size", "EntityTooLarge")
        self.require_room(call.content)
        self.files[f"s3://rows/{name}"] = call.content
        return Reply(200, "", {"ETag": '"double"'})

    def create_job(self, call: Call) -> Reply:
        body = validate_body("CreateModelCustomizationJob", call.json)
        name = body["jobName"]
        if not JOB_NAME.fullmatch(name) or len(name) > 63:
            raise Refusal(400, f"{name!r} is not the name of a job.")
        match = CREDENTIAL.search(call.headers["authorization"])
        region = match[2] if match is not None else ""
        if body["baseModelIdentifier"] not in REGIONS.get(region, ()):
            raise Refusal(400, f"The model {body['baseModelIdentifier']} cannot be customized in {region}.")
        if body["trainingDataConfig"]["s3Uri"] not in self.files:
            raise Refusal(400, "The training data are not in the bucket.")
        if unknown := body.get("hyperParameters", {}).keys() - HYPERPARAMETERS:
            raise Refusal(400, f"The model has no hyperparameter {', '.join(sorted(unknown))}.")
        same = next((job for job in self.jobs.values()
                     if job.body.get("clientRequestToken") == body.get("clientRequestToken")), None)  # fmt: skip
        if same is None and any(job.body["jobName"] == name for job in self.jobs.values()):
            raise Refusal(400, f"The name {name} is taken.")
        job = same or self.add_job(f"{ARN}{name}", body)
        return Reply(201, {"jobArn": job.id})

    def list_all(self, call: Call) -> Reply:
        part = call.query.get("nameContains", "")
        rows = [
            {"jobArn": job.id, "jobName": job.body["jobName"], "status": job.word, "creationTime": TIME,
             "baseModelArn": "arn:aws:bedrock:us-east-1::foundation-model/double"}
            for job in self.list_visible() if part in job.body["jobName"]
        ]  # fmt: skip
        return Reply(200, {"modelCustomizationJobSummaries": rows})

    def show(self, call: Call, job_id: str) -> Reply:
        return Reply(200, describe(self.read_job(job_id)))

    def cancel(self, call: Call, job_id: str) -> Reply:
        self.cancel_job(job_id)
        return Reply(200, {})


@cache
def read_service_model() -> Any:
    import botocore.session  # an optional package

    return botocore.session.get_session().get_service_model("bedrock")


def validate_body(operation: str, body: JsonObject) -> JsonObject:
    """Return a body, valid by botocore's model of the operation. Raises `Refusal` (400)."""
    from botocore.validate import ParamValidator  # an optional package

    shape = read_service_model().operation_model(operation).input_shape
    report = ParamValidator().validate(body, shape)
    unknown = body.keys() - shape.members.keys()
    if report.has_errors() or unknown:
        raise Refusal(400, report.generate_report() or f"There is no field {', '.join(sorted(unknown))}.")
    return body


def describe(job: JobDouble) -> JsonObject:
    """Return a job as Bedrock shows it."""
    body, done = job.body, job.word == "Completed"
    values: JsonObject = {
        "jobArn": job.id, "jobName": body["jobName"], "roleArn": body["roleArn"], "status": job.word,
        "outputModelName": body["customModelName"], "creationTime": TIME, "lastModifiedTime": TIME,
        "baseModelArn": "arn:aws:bedrock:us-east-1::foundation-model/double",
        "trainingDataConfig": body["trainingDataConfig"], "outputDataConfig": body["outputDataConfig"],
        "hyperParameters": body.get("hyperParameters", {}),
        "statusDetails": {"trainingDetails": {"status": "Completed" if done else "InProgress", "creationTime": TIME,
                                              "lastModifiedTime": TIME}},
    }  # fmt: skip
    if done:
        values |= {"outputModelArn": f"arn:aws:bedrock:us-east-1:123456789012:custom-model/{body['customModelName']}",
                   "trainingMetrics": {"trainingLoss": 0.5}}  # fmt: skip
    if job.word == "Failed":
        values["failureMessage"] = "The job failed."
    return values
