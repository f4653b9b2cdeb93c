"""Together AI, by its client `together`. The run key is in the suffix, which its list of jobs repeats.

together 3.1.1 does not resolve next to Prefect 3.8 (cyclopts 4); together 2.36 speaks the same routes.
"""

from __future__ import annotations

import tarfile
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
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage

BACKEND = CloudProgram(BackendName.TOGETHER)
NAME = BACKEND.name.value
STATES = {
    "pending": ProviderState.WAITING,
    "queued": ProviderState.WAITING,
    "running": ProviderState.RUNNING,
    "compressing": ProviderState.RUNNING,
    "uploading": ProviderState.RUNNING,
    "cancel_requested": ProviderState.RUNNING,
    "cancelled": ProviderState.CANCELED,
    "error": ProviderState.FAILED,
    "completed": ProviderState.DONE,
}
NANO_USD = 1e-9
"""`total_price` is in billionths of a dollar."""


class Together:
    """Jobs of Together AI."""

    def __init__(self, address: ProviderAddress) -> None:
        import httpx  # the client's HTTP library, whose errors it passes on
        import together  # the client of an extra

        self.calls = ProviderCalls(NAME, (together.TogetherError, httpx.HTTPError), address.keys)
        self.client = together.Together(
            api_key=address.key, base_url=address.base_url or None, max_retries=0, timeout=REQUEST_TIMEOUT_S
        )

    def upload(self, path: Path, name: str) -> str:
        with self.calls("the upload of rows", OSError):
            named = path.with_name(name)
            if named != path:
                named.unlink(missing_ok=True)
                named.hardlink_to(path)
            return str(self.client.files.upload(named, purpose="fine-tune", check=False).id)

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        with self.calls(f"the submission of {request.model}"):
            return read_job(self.client.fine_tuning.create(**arguments(request, rows)))

    def find(self, run_key: str) -> list[RemoteJob]:
        with self.calls("the list of jobs"):
            rows = self.client.fine_tuning.list().data
        return [read_job(row) for row in rows if (row.suffix or "").endswith(run_key)]

    def read(self, job_id: str) -> RemoteJob:
        with self.calls(f"the state of {job_id}"):
            return read_job(self.client.fine_tuning.retrieve(job_id))

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        del cursor  # all events are one page
        with self.calls(f"the events of {job_id}"):
            rows = self.client.fine_tuning.list_events(job_id).data
            metrics = self.client.fine_tuning.list_metrics(job_id).metrics or []
        events = [RemoteEvent(f"event-{number}", row.message, row.created_at) for number, row in enumerate(rows)]
        for values in metrics:
            if (step := values.get("global_step", values.get("step"))) is not None:
                progress = read_metrics(values, float(step))
                events.append(RemoteEvent(f"step-{int(step)}", f"step {int(step)}", progress=progress))
        return EventPage(events)

    def cancel(self, job_id: str) -> None:
        with self.calls(f"the cancellation of {job_id}"):
            self.client.fine_tuning.cancel(job_id)

    def download(self, job: RemoteJob, folder: Path) -> None:
        archive = folder / "model.tar"
        with self.calls(f"the download of {job.id}", OSError):
            with self.client.fine_tuning.with_streaming_response.content(ft_id=job.id, checkpoint="adapter") as reply:
                reply.stream_to_file(archive)
            try:
                with tarfile.open(archive) as opened:
                    opened.extractall(folder, filter="data")
            except tarfile.TarError as error:
                raise ProviderError(f"The archive of {job.id} cannot be read.", why=str(error)) from error
        archive.unlink()


def open_provider(address: ProviderAddress) -> Together:
    return Together(address)


def arguments(request: CloudRequest, rows: UploadedRows) -> dict[str, Any]:
    """Return the arguments of `fine_tuning.create`."""
    config = request.config
    hyper = config.hyperparameters if config is not None else None
    targets = method_setting(request, "target_modules")
    dpo = request.stage is Stage.DPO
    return drop_missing({
        "training_file": rows.training,
        "validation_file": rows.validation,
        "model": request.model,
        "suffix": request.label,
        "n_epochs": request.epochs,
        "batch_size": request.batch_size,
        "learning_rate": request.learning_rate,
        "lora": True if config is None else config.method.type is Method.LORA,
        "lora_r": method_setting(request, "rank"),
        "lora_alpha": None if (alpha := method_setting(request, "alpha")) is None else int(alpha),
        "lora_dropout": method_setting(request, "dropout"),
        "lora_trainable_modules": ",".join(targets) if isinstance(targets, tuple) else targets,
        "training_method": "dpo" if dpo else "sft",
        "train_on_inputs": None if dpo else "auto",
        "dpo_beta": getattr(config.stage, "beta", None) if dpo and config is not None else None,
        "warmup_ratio": hyper.warmup_ratio if hyper is not None else None,
        "weight_decay": hyper.weight_decay if hyper is not None else None,
        "max_grad_norm": hyper.max_grad_norm if hyper is not None else None,
        "lr_scheduler_type": hyper.schedule.value if hyper is not None else None,
        "random_seed": hyper.seed if hyper is not None else None,
    })  # fmt: skip


def read_job(row: Any) -> RemoteJob:
    """Return a job of one of the client's five models of it."""
    word = str(row.status)
    price = getattr(row, "total_price", None)
    return RemoteJob(
        row.id,
        STATES.get(word, ProviderState.UNKNOWN),
        word,
        model=getattr(row, "x_model_output_name", None) or "",
        tokens=getattr(row, "token_count", None),
        cost_usd=None if price is None else price * NANO_USD,
    )


METRICS = {"train/loss": "loss", "eval/loss": "eval_loss", "train/learning_rate": "learning_rate"}


def read_metrics(values: dict[str, Any], step: float) -> dict[str, float]:
    """Return the numbers of a step in our words."""
    numbers = {METRICS.get(name, name): value for name, value in values.items() if isinstance(value, int | float)}
    kept = ("loss", "eval_loss", "learning_rate", "epoch", "total_steps")
    return {"step": step, **{name: float(numbers[name]) for name in kept if name in numbers}}
