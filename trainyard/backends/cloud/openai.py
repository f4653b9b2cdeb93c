"""OpenAI's fine-tuning wire, by its client `openai`: OpenAI until 2027-01-06, Azure, Nebius, another Trainyard.

`service: {endpoint: NAME}` names the address and the key of a service other than OpenAI. The run key is in `metadata`
and in the suffix; services that keep no metadata are searched by the suffix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainyard.backends.cloud.backend import CloudProgram
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
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage

BACKEND = CloudProgram(BackendName.OPENAI)
NAME = BACKEND.name.value
STATES = {
    "validating_files": ProviderState.WAITING,
    "queued": ProviderState.WAITING,
    "running": ProviderState.RUNNING,
    "paused": ProviderState.WAITING,
    "succeeded": ProviderState.DONE,
    "failed": ProviderState.FAILED,
    "cancelled": ProviderState.CANCELED,
}
METADATA_KEY = "trainyard_run"
PAGE = 100
NUMBERS = {
    "train_loss": "loss",
    "valid_loss": "eval_loss",
    "full_valid_loss": "eval_loss",
    "total_steps": "total_steps",
}


class OpenAi:
    """Jobs of a service with OpenAI's wire."""

    def __init__(self, address: ProviderAddress) -> None:
        import openai  # the client of an extra

        self.calls, self.omit = ProviderCalls(NAME, (openai.OpenAIError,), address.keys), openai.omit
        self.client = openai.OpenAI(
            api_key=address.key, base_url=address.base_url or None, max_retries=0, timeout=REQUEST_TIMEOUT_S
        )

    def upload(self, path: Path, name: str) -> str:
        with self.calls("the upload of rows"), path.open("rb") as content:
            return str(self.client.files.create(file=(name, content), purpose="fine-tune").id)

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        with self.calls(f"the submission of {request.model}"):
            return read_job(self.client.fine_tuning.jobs.create(**arguments(request, rows)))

    def find(self, run_key: str) -> list[RemoteJob]:
        with self.calls("the list of jobs"):
            rows = list(self.client.fine_tuning.jobs.list(limit=PAGE))
        return [read_job(row) for row in rows if is_of_run(row, run_key)]

    def read(self, job_id: str) -> RemoteJob:
        with self.calls(f"the state of {job_id}"):
            return read_job(self.client.fine_tuning.jobs.retrieve(job_id))

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        with self.calls(f"the events of {job_id}"):
            page = self.client.fine_tuning.jobs.list_events(job_id, limit=PAGE, after=cursor or self.omit)
        events = [
            RemoteEvent(row.id, row.message, str(row.created_at), read_metrics(row.data))
            for row in reversed(page.data)  # the newest is listed first
        ]
        return EventPage(events, page.data[-1].id if page.data and page.has_next_page() else "")

    def cancel(self, job_id: str) -> None:
        with self.calls(f"the cancellation of {job_id}"):
            self.client.fine_tuning.jobs.cancel(job_id)

    def download(self, job: RemoteJob, folder: Path) -> None:
        """Raise `Refused` (`R-PROVIDER`): the service gives no weights out."""
        raise Refused([BACKEND.no_weights_reason()])


def open_provider(address: ProviderAddress) -> OpenAi:
    return OpenAi(address)


def arguments(request: CloudRequest, rows: UploadedRows) -> dict[str, Any]:
    """Return the arguments of `fine_tuning.jobs.create`."""
    kind = "dpo" if request.stage is Stage.DPO else "supervised"
    config = request.config
    hyper: dict[str, Any] = drop_missing({"n_epochs": request.epochs, "batch_size": request.batch_size})
    if kind == "dpo" and config is not None:
        hyper["beta"] = getattr(config.stage, "beta", None)
    return drop_missing({
        "model": request.model,
        "training_file": rows.training,
        "validation_file": rows.validation,
        "suffix": request.label,
        "metadata": {METADATA_KEY: request.run_key},
        "method": {"type": kind, kind: {"hyperparameters": hyper}},
        "seed": None if config is None else config.hyperparameters.seed,
    })  # fmt: skip


def is_of_run(row: Any, run_key: str) -> bool:
    """Return whether a job has a run key: in its metadata, or in the name of its model."""
    metadata = row.metadata or {}
    suffix = getattr(row, "suffix", None) or getattr(row, "user_provided_suffix", None) or ""
    return metadata.get(METADATA_KEY) == run_key or str(suffix).endswith(run_key)


def read_job(row: Any) -> RemoteJob:
    word = str(row.status)
    message = row.error.message if row.error is not None and row.error.message else ""
    return RemoteJob(
        row.id, STATES.get(word, ProviderState.UNKNOWN), word, message=message, model=row.fine_tuned_model or "",
        tokens=row.trained_tokens,
    )  # fmt: skip


def read_metrics(data: Any) -> dict[str, float]:
    """Return the numbers of a metrics event in our words; empty for an event without a step."""
    if not isinstance(data, dict) or not isinstance(data.get("step"), int):
        return {}
    numbers = {NUMBERS[name]: float(value) for name, value in data.items()
               if name in NUMBERS and isinstance(value, int | float)}  # fmt: skip
    return {"step": float(data["step"]), **numbers}
