"""Google Vertex AI's tuning jobs, by httpx against its documented routes, with `google-auth` for tokens.

Five routes need no client of their own; the types of google-genai validate their bodies in the double. Rows lie in the
operator's bucket. The run key is in the display name and in a label, and the list is filtered by the label.
"""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

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
    method_setting,
)
from trainyard.backends.cloud.errors import ProviderCalls
from trainyard.errors import Refused
from trainyard.json_types import JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage

LOCATION = "GOOGLE_CLOUD_LOCATION"
LOCATIONS = frozenset({
    "africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3",
    "asia-south1", "asia-south2", "asia-southeast1", "asia-southeast2", "australia-southeast1",
    "australia-southeast2", "europe-central2", "europe-north1", "europe-north2", "europe-southwest1", "europe-west1",
    "europe-west12", "europe-west2", "europe-west3", "europe-west4", "europe-west6", "europe-west8", "europe-west9",
    "me-central1", "me-central2", "me-west1", "northamerica-northeast1", "northamerica-northeast2",
    "southamerica-east1", "southamerica-west1", "us-central1", "us-east1", "us-east4", "us-east5", "us-east7",
    "us-south1", "us-west1", "us-west2", "us-west3", "us-west4", "us-west8",
})  # fmt: skip
"""Regions of google-cloud-aiplatform 2.7 (2026-11); tuning jobs have no global one."""
BACKEND = CloudProgram(
    BackendName.VERTEX,
    Regions(LOCATION, lambda: LOCATIONS, "set VERTEX_BASE_URL to https://REGION-aiplatform.googleapis.com"),
)
NAME = BACKEND.name.value
PREFIX = "JOB_STATE_"
STATES = {
    **dict.fromkeys(("QUEUED", "PENDING", "PAUSED"), ProviderState.WAITING),
    **dict.fromkeys(("RUNNING", "CANCELLING", "UPDATING"), ProviderState.RUNNING),
    **dict.fromkeys(("SUCCEEDED", "PARTIALLY_SUCCEEDED"), ProviderState.DONE),
    **dict.fromkeys(("FAILED", "EXPIRED"), ProviderState.FAILED),
    "CANCELLED": ProviderState.CANCELED,
}
LABEL = "trainyard-run"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SIZES = {1: "ADAPTER_SIZE_ONE", 2: "ADAPTER_SIZE_TWO", 4: "ADAPTER_SIZE_FOUR", 8: "ADAPTER_SIZE_EIGHT",
         16: "ADAPTER_SIZE_SIXTEEN", 32: "ADAPTER_SIZE_THIRTY_TWO"}  # fmt: skip
STORE = "https://storage.googleapis.com"
GOOGLE = ".googleapis.com"


class TokenUnavailable(Exception):
    """No access token came, and one may come later."""


class KeyRefused(TokenUnavailable):
    """The file of an account gives no access token, now and later."""

    status_code = 401


class Vertex:
    """Tuning jobs of a project and a location."""

    def __init__(self, address: ProviderAddress) -> None:
        import httpx  # the client of every installation

        self.key, self.has_file = address.key, Path(address.key).is_file()
        self.calls = ProviderCalls(NAME, (httpx.HTTPError,), () if self.has_file else address.keys)
        location = self.location = address.variable(LOCATION)
        self.bucket = address.variable("VERTEX_BUCKET")
        self.host = address.base_url or f"https://{location}-aiplatform.googleapis.com"
        self.is_google = not address.base_url or urlsplit(address.base_url).netloc.endswith(GOOGLE)
        self.store = STORE if self.is_google else address.base_url
        self.parent = f"projects/{address.variable('GOOGLE_CLOUD_PROJECT')}/locations/{location}"
        self.client = httpx.Client(timeout=REQUEST_TIMEOUT_S)
        weakref.finalize(self, self.client.close)

    def ask(self, what: str, method: str, url: str, **options: Any) -> Any:
        """Send a request once, and return its JSON."""
        with self.calls(what, TokenUnavailable):
            reply = self.client.request(method, url, headers={"Authorization": f"Bearer {self.token()}"}, **options)
            reply.raise_for_status()
            return reply.json() if reply.content else {}

    def token(self) -> str:
        """Return an access token of the account whose file the key names; at an address not of Google the key itself.

        Raises `KeyRefused` where Google does not accept the account any more, or the file is none of an account.
        """
        if not self.is_google and not self.has_file:
            return self.key
        import google.auth
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        try:
            with warnings.catch_warnings():  # that a file may be a stranger's: this one is the operator's
                warnings.simplefilter("ignore", DeprecationWarning)
                credentials, _ = google.auth.load_credentials_from_file(self.key, scopes=[SCOPE])
            credentials.refresh(Request())
        except TransportError as error:
            raise TokenUnavailable(str(error)) from error
        except (GoogleAuthError, ValueError) as error:
            text = error.args[0] if error.args else type(error).__name__
            raise (TokenUnavailable if getattr(error, "retryable", False) else KeyRefused)(str(text)) from error
        return str(credentials.token)

    def upload(self, path: Path, name: str) -> str:
        url = f"{self.store}/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={quote(f'trainyard/{name}', '')}"
        with path.open("rb") as content:
            self.ask("the upload of rows", "POST", url, content=content)
        return f"gs://{self.bucket}/trainyard/{name}"

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        body = build_body(request, rows)
        what = f"the submission of {request.model} in {self.location}"
        return read_job(self.ask(what, "POST", f"{self.host}/v1/{self.parent}/tuningJobs", json=body))

    def find(self, run_key: str) -> list[RemoteJob]:
        found, token = [], ""
        while True:
            parameters = {"filter": f'labels.{LABEL}="{run_key}"', "pageSize": "100", "pageToken": token}
            page = self.ask("the list of jobs", "GET", f"{self.host}/v1/{self.parent}/tuningJobs", params=parameters)
            found += [row for row in page.get("tuningJobs", ()) if (row.get("labels") or {}).get(LABEL) == run_key]
            token = page.get("nextPageToken", "")
            if not token:
                return [read_job(row) for row in found]

    def read(self, job_id: str) -> RemoteJob:
        return read_job(self.ask(f"the state of {job_id}", "GET", f"{self.host}/v1/{job_id}"))

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        """Return the checkpoints of a job as events: Vertex has no list of events."""
        del cursor
        row = self.ask(f"the checkpoints of {job_id}", "GET", f"{self.host}/v1/{job_id}")
        checkpoints = (row.get("tunedModel") or {}).get("checkpoints") or ()
        return EventPage([
            RemoteEvent(f"checkpoint-{point['checkpointId']}", f"checkpoint {point['checkpointId']}, epoch "
                        f"{point.get('epoch')}, step {point.get('step')}")
            for point in checkpoints
        ])  # fmt: skip

    def cancel(self, job_id: str) -> None:
        self.ask(f"the cancellation of {job_id}", "POST", f"{self.host}/v1/{job_id}:cancel", json={})

    def download(self, job: RemoteJob, folder: Path) -> None:
        """Raise `Refused` (`R-PROVIDER`): a tuned model is served and not given out."""
        raise Refused([BACKEND.no_weights_reason()])


def open_provider(address: ProviderAddress) -> Vertex:
    return Vertex(address)


def build_body(request: CloudRequest, rows: UploadedRows) -> JsonObject:
    """Return the body of a tuning job, as google-genai writes it."""
    rank = method_setting(request, "rank")
    pairs = request.stage is Stage.DPO
    hyper = drop_missing({
        "epochCount": None if request.epochs is None else str(request.epochs),
        "adapterSize": SIZES.get(rank) if rank is not None else None,
        "beta": getattr(request.config.stage, "beta", None) if pairs and request.config is not None else None,
    })  # fmt: skip
    spec = drop_missing({
        "trainingDatasetUri": rows.training, "validationDatasetUri": rows.validation, "hyperParameters": hyper or None,
    })  # fmt: skip
    return {
        "baseModel": request.model,
        "tunedModelDisplayName": request.label,
        "labels": {LABEL: request.run_key},
        "preferenceOptimizationSpec" if pairs else "supervisedTuningSpec": spec,
    }


def read_job(row: JsonObject) -> RemoteJob:
    word = str(row.get("state", "JOB_STATE_UNSPECIFIED"))
    stats = (row.get("tuningDataStats") or {}).get("supervisedTuningDataStats") or {}
    tokens = stats.get("totalBillableTokenCount")
    return RemoteJob(
        str(row["name"]),
        STATES.get(word.removeprefix(PREFIX), ProviderState.UNKNOWN),
        word,
        message=(row.get("error") or {}).get("message", ""),
        model=(row.get("tunedModel") or {}).get("model", ""),
        tokens=None if tokens is None else int(tokens),
    )


def format_row(row: Any, stage: Stage) -> JsonObject:
    """Return a row in Vertex's format: contents of parts, and of a pair two completions."""
    if stage is Stage.DPO:
        completions = [
            {"score": score, "completion": make_content(answer[-1])}
            for score, answer in ((1, row.chosen), (0, row.rejected))
        ]
        return {"contents": [make_content(message) for message in row.prompt], "completions": completions}
    turns = [make_content(message) for message in row.messages if message.role != "system"]
    system = [{"text": message.content} for message in row.messages if message.role == "system"]
    return {**({"systemInstruction": {"parts": system}} if system else {}), "contents": turns}


def make_content(message: Any) -> JsonObject:
    return {"role": "model" if message.role == "assistant" else "user", "parts": [{"text": message.content}]}
