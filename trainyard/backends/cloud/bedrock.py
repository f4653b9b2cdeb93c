"""Amazon Bedrock, by `boto3`: rows in the operator's bucket, a customization job whose name and token are the run key.

AWS answers a second request with the same `clientRequestToken` with the first one's job, and its list is searched by
name. What comes out is a custom model that Bedrock serves. AWS bills tokens and says no price: the plan's prices count.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from trainyard.backends.cloud.backend import CloudProgram, Regions
from trainyard.backends.cloud.contract import (
    REQUEST_TIMEOUT_S,
    CloudRequest,
    EventPage,
    ProviderAddress,
    ProviderState,
    RemoteEvent,
    RemoteJob,
    UploadedRows,
    drop_missing,
)
from trainyard.backends.cloud.errors import ProviderCalls
from trainyard.errors import Refused
from trainyard.json_types import JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage

REGION = "AWS_REGION"


def list_regions() -> frozenset[str]:
    """Return the regions with Bedrock, of every partition, that this version of the client knows."""
    import botocore.session  # the client of an extra

    session = botocore.session.get_session()
    partitions = session.get_available_partitions()
    return frozenset(name for part in partitions for name in session.get_available_regions("bedrock", part))


BACKEND = CloudProgram(BackendName.BEDROCK, Regions(REGION, list_regions, "update boto3"))
NAME = BACKEND.name.value
STATES = {
    "InProgress": ProviderState.RUNNING,
    "Completed": ProviderState.DONE,
    "Failed": ProviderState.FAILED,
    "Stopping": ProviderState.RUNNING,
    "Stopped": ProviderState.CANCELED,
}
SCHEMA = "bedrock-conversation-2024"


class Bedrock:
    """Customization jobs of an account of AWS."""

    def __init__(self, address: ProviderAddress) -> None:
        import boto3  # the client of an extra
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        self.calls = ProviderCalls(NAME, (BotoCoreError, ClientError), address.keys)
        self.bucket, self.role = address.variable("BEDROCK_BUCKET"), address.variable("BEDROCK_ROLE_ARN")
        self.region = address.variable(REGION)
        session = boto3.session.Session(
            aws_access_key_id=address.variable("AWS_ACCESS_KEY_ID"), aws_secret_access_key=address.key,
            aws_session_token=address.variable("AWS_SESSION_TOKEN") or None, region_name=self.region,
        )  # fmt: skip
        config = Config(
            retries={"total_max_attempts": 1}, read_timeout=REQUEST_TIMEOUT_S, connect_timeout=REQUEST_TIMEOUT_S,
            s3={"addressing_style": "path"} if address.base_url else None,
        )  # fmt: skip
        with self.calls(f"in {self.region}"):  # a name that is none is refused by the client
            self.client = session.client("bedrock", endpoint_url=address.base_url or None, config=config)
            self.store = session.client("s3", endpoint_url=address.base_url or None, config=config)
        for client in (self.client, self.store):
            weakref.finalize(self, client.close)

    def upload(self, path: Path, name: str) -> str:
        with self.calls("the upload of rows"), path.open("rb") as content:
            self.store.put_object(Bucket=self.bucket, Key=f"trainyard/{name}", Body=content)
        return f"s3://{self.bucket}/trainyard/{name}"

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        with self.calls(f"the submission of {request.model} in {self.region}"):
            reply = self.client.create_model_customization_job(**arguments(request, rows, self.role, self.bucket))
        return RemoteJob(reply["jobArn"], ProviderState.RUNNING, "InProgress")

    def find(self, run_key: str) -> list[RemoteJob]:
        found, token = [], ""
        while True:
            more = {"nextToken": token} if token else {}
            with self.calls("the list of jobs"):
                page = self.client.list_model_customization_jobs(nameContains=run_key, **more)
            found += [row for row in page["modelCustomizationJobSummaries"] if row["jobName"] == run_key]
            token = page.get("nextToken", "")
            if not token:
                return [read_job(row) for row in found]

    def read(self, job_id: str) -> RemoteJob:
        with self.calls(f"the state of {job_id}"):
            return read_job(self.client.get_model_customization_job(jobIdentifier=job_id))

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        """Return the phases that a job reports, each once: Bedrock has no list of events."""
        del cursor
        with self.calls(f"the phases of {job_id}"):
            row = self.client.get_model_customization_job(jobIdentifier=job_id)
        details = row.get("statusDetails") or {}
        events = [
            RemoteEvent(f"{name}-{phase['status']}", f"{name}: {phase['status']}")
            for name, phase in details.items()
            if isinstance(phase, dict) and phase.get("status")
        ]
        loss = (row.get("trainingMetrics") or {}).get("trainingLoss")
        if loss is not None:
            events.append(RemoteEvent("loss", f"training loss {loss:.4f}"))
        return EventPage(events)

    def cancel(self, job_id: str) -> None:
        with self.calls(f"the cancellation of {job_id}"):
            self.client.stop_model_customization_job(jobIdentifier=job_id)

    def download(self, job: RemoteJob, folder: Path) -> None:
        """Raise `Refused` (`R-PROVIDER`): a custom model is served and not given out."""
        raise Refused([BACKEND.no_weights_reason()])


def open_provider(address: ProviderAddress) -> Bedrock:
    return Bedrock(address)


def arguments(request: CloudRequest, rows: UploadedRows, role: str, bucket: str) -> dict[str, Any]:
    """Return the arguments of `create_model_customization_job`; hyperparameters are texts."""
    hyper = request.config.hyperparameters if request.config is not None else None
    named = drop_missing({
        "epochCount": request.epochs, "batchSize": request.batch_size, "learningRate": request.learning_rate,
        "learningRateWarmupSteps": hyper.warmup_steps if hyper is not None else None,
    })  # fmt: skip
    validation = {"validators": [{"s3Uri": rows.validation}]} if rows.validation else None
    return drop_missing({
        "jobName": request.run_key,
        "clientRequestToken": request.run_key,
        "customModelName": request.label,
        "roleArn": role,
        "baseModelIdentifier": request.model,
        "customizationType": "FINE_TUNING",
        "trainingDataConfig": {"s3Uri": rows.training},
        "validationDataConfig": validation,
        "outputDataConfig": {"s3Uri": f"s3://{bucket}/trainyard/{request.run_key}"},
        "hyperParameters": {name: f"{value:g}" if isinstance(value, float) else str(value)
                            for name, value in named.items()},
    })  # fmt: skip


def read_job(row: JsonObject) -> RemoteJob:
    """Return a job, from its own description or its line in the list."""
    word = str(row["status"])
    return RemoteJob(
        str(row["jobArn"]), STATES.get(word, ProviderState.UNKNOWN), word, message=row.get("failureMessage", ""),
        model=row.get("outputModelArn") or row.get("outputModelName") or "",
    )  # fmt: skip


def format_row(row: Any, stage: Stage) -> JsonObject:
    """Return a conversation in Bedrock's format: system texts, then turns of texts."""
    del stage  # sft alone
    turns = [{"role": message.role, "content": [{"text": message.content}]} for message in row.messages
             if message.role != "system"]  # fmt: skip
    system = [{"text": message.content} for message in row.messages if message.role == "system"]
    return {"schemaVersion": SCHEMA, **({"system": system} if system else {}), "messages": turns}
