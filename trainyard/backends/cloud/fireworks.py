"""Fireworks AI, by its client `fireworks-ai`. We choose the job's id: a job that is created twice is refused (409)."""

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
    method_setting,
)
from trainyard.backends.cloud.errors import ProviderCalls, ProviderError
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage

BACKEND = CloudProgram(BackendName.FIREWORKS)
NAME = BACKEND.name.value
PREFIX = "JOB_STATE_"
STATES = {
    **dict.fromkeys(
        ("CREATING", "PENDING", "VALIDATING", "RE_QUEUEING", "CREATING_INPUT_DATASET", "IDLE", "PAUSED"),
        ProviderState.WAITING,
    ),
    **dict.fromkeys(("RUNNING", "WRITING_RESULTS", "CANCELLING"), ProviderState.RUNNING),
    **dict.fromkeys(("COMPLETED", "EARLY_STOPPED"), ProviderState.DONE),
    **dict.fromkeys(("FAILED", "EXPIRED"), ProviderState.FAILED),
    **dict.fromkeys(("CANCELLED", "DELETING", "DELETING_CLEANING_UP"), ProviderState.CANCELED),
}
"""States without their prefix; JOB_STATE_UNSPECIFIED is an unknown state."""
SUPERVISED, PAIRS = "sft", "dpo"


class Fireworks:
    """Jobs of Fireworks AI; an id is `sft/NAME` or `dpo/NAME`, as the two kinds have routes of their own."""

    def __init__(self, address: ProviderAddress) -> None:
        import fireworks  # the client of an extra

        self.calls = ProviderCalls(NAME, (fireworks.FireworksError,), address.keys)
        self.account = address.variable("FIREWORKS_ACCOUNT_ID")
        self.client = fireworks.Fireworks(
            api_key=address.key, account_id=self.account or None, base_url=address.base_url or None, max_retries=0,
            timeout=REQUEST_TIMEOUT_S,
        )  # fmt: skip

    def upload(self, path: Path, name: str) -> str:
        dataset = name.removesuffix(".jsonl").lower()
        with path.open("rb") as lines:
            rows = sum(1 for _ in lines)
        with self.calls("the upload of rows"):
            try:
                facts = {"format": "CHAT", "user_uploaded": {}, "example_count": str(rows)}
                self.client.datasets.create(dataset_id=dataset, dataset=facts)  # type: ignore[arg-type]
            except self.calls.kinds as error:
                if getattr(error, "status_code", None) != 409:  # of an upload whose reply was lost
                    raise
            with path.open("rb") as content:
                self.client.datasets.upload(dataset, file=(name, content))
        return f"accounts/{self.account}/datasets/{dataset}"

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        with self.calls(f"the submission of {request.model}"):
            if request.stage is Stage.DPO:
                beta = getattr(request.config.stage, "beta", None) if request.config is not None else None
                loss = {"method": "DPO", **({} if beta is None else {"dpo": {"beta": beta}})}
                pairs: Any = {"training_config": settings_of(request), "loss_config": loss}
                return read_job(PAIRS, self.client.dpo_jobs.create(
                    dpo_job_id=request.run_key, dataset=rows.training, display_name=request.label, **pairs
                ))  # fmt: skip
            values = settings_of(request) | drop_missing({"evaluation_dataset": rows.validation})
            return read_job(SUPERVISED, self.client.supervised_fine_tuning_jobs.create(
                supervised_fine_tuning_job_id=request.run_key, dataset=rows.training, display_name=request.label,
                **values,
            ))  # fmt: skip

    def find(self, run_key: str) -> list[RemoteJob]:
        jobs = []
        for kind in (SUPERVISED, PAIRS):
            try:
                jobs.append(self.read(f"{kind}/{run_key}"))
            except ProviderError as error:
                if error.status != 404:
                    raise
        return jobs

    def read(self, job_id: str) -> RemoteJob:
        kind, _, name = job_id.partition("/")
        with self.calls(f"the state of {name}"):
            if kind == PAIRS:
                return read_job(kind, self.client.dpo_jobs.get(name))
            return read_job(kind, self.client.supervised_fine_tuning_jobs.get(name))

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        """Return the progress of a job as an event: Fireworks has no list of them."""
        del cursor
        kind, _, name = job_id.partition("/")
        if kind == PAIRS:
            return EventPage([])
        with self.calls(f"the progress of {name}"):
            progress = self.client.supervised_fine_tuning_jobs.get(name).job_progress
        if progress is None or progress.percent is None:
            return EventPage([])
        epoch = "" if progress.epoch is None else f", epoch {progress.epoch}"
        return EventPage([RemoteEvent(f"percent-{progress.percent}", f"{progress.percent} %{epoch}")])

    def cancel(self, job_id: str) -> None:
        kind, _, name = job_id.partition("/")
        with self.calls(f"the cancellation of {name}"):
            if kind == PAIRS:
                self.client.dpo_jobs.cancel(name, body={})
            else:
                self.client.supervised_fine_tuning_jobs.cancel(name, body={})

    def download(self, job: RemoteJob, folder: Path) -> None:
        import httpx  # loaded by the client already

        name = job.model.rpartition("/")[2]
        with self.calls(f"the download of {name}", httpx.HTTPError, OSError):
            urls = self.client.models.get_download_endpoint(name).filename_to_signed_urls or {}
            for path, url in urls.items():
                target = folder / Path(path).name
                with httpx.stream("GET", url, timeout=REQUEST_TIMEOUT_S) as reply, target.open("wb") as file:
                    reply.raise_for_status()
                    for block in reply.iter_bytes():
                        file.write(block)


def open_provider(address: ProviderAddress) -> Fireworks:
    return Fireworks(address)


def settings_of(request: CloudRequest) -> dict[str, Any]:
    """Return base, result and hyperparameters, which both kinds of jobs have."""
    config = request.config
    hyper = config.hyperparameters if config is not None else None
    return drop_missing({
        "base_model": request.model,
        "output_model": request.label.lower(),
        "epochs": request.epochs,
        "learning_rate": request.learning_rate,
        "batch_size_samples": request.batch_size,
        "lora_rank": method_setting(request, "rank"),
        "gradient_accumulation_steps": hyper.gradient_accumulation if hyper is not None else None,
        "learning_rate_warmup_steps": hyper.warmup_steps if hyper is not None else None,
    })  # fmt: skip


def read_job(kind: str, row: Any) -> RemoteJob:
    word = str(row.state or "JOB_STATE_UNSPECIFIED")
    name = str(row.name or "").rpartition("/")[2]
    cost = getattr(row, "estimated_cost", None)
    dollars = None
    if cost is not None and cost.currency_code in (None, "USD"):
        dollars = int(cost.units or 0) + (cost.nanos or 0) * 1e-9
    progress = getattr(row, "job_progress", None)
    config = getattr(row, "training_config", None)
    model = getattr(row, "output_model", None) or getattr(config, "output_model", None) or ""
    return RemoteJob(
        f"{kind}/{name}",
        STATES.get(word.removeprefix(PREFIX), ProviderState.UNKNOWN),
        word,
        message=getattr(row.status, "message", None) or "",
        model=model,
        tokens=getattr(progress, "input_tokens", None),
        cost_usd=dollars,
    )
