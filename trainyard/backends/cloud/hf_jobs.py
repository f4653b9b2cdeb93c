"""Hugging Face Jobs, by `huggingface_hub`: our program on a rented flavour, with a time limit, weights in the Hub.

Rows and result are private repositories of the account. The run key is a label of the job, by which its list is
filtered. The program is TRL's trainer with our settings, given to `uv run python -c`; it prints its numbers as lines
that begin with `TRAINYARD`, which are read from the job's log.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from trainyard.backends.cloud.backend import CloudProgram
from trainyard.backends.cloud.contract import (
    CloudRequest,
    EventPage,
    ProviderAddress,
    ProviderState,
    RemoteEvent,
    RemoteJob,
    UploadedRows,
    drop_missing,
    read_number,
)
from trainyard.backends.cloud.errors import ProviderCalls
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method

BACKEND = CloudProgram(BackendName.HF_JOBS)
NAME = BACKEND.name.value
STATES = {
    "SCHEDULING": ProviderState.WAITING,
    "RUNNING": ProviderState.RUNNING,
    "COMPLETED": ProviderState.DONE,
    "CANCELED": ProviderState.CANCELED,
    "DELETED": ProviderState.CANCELED,
    "ERROR": ProviderState.FAILED,
}
LABEL = "trainyard-run"
FLAVOR, TIMEOUT_S = "a10g-small", 3600
"""Hardware and time limit where the trainer names none (`service.flavor`, `budget_s`)."""
PACKAGES = ("trl==1.16.*", "peft>=0.21,<0.22", "transformers>=5.23,<6", "datasets>=5.2,<6", "huggingface_hub>=2.4,<3")
MARK = "TRAINYARD "
ROWS = "rows.jsonl"
SCRIPT = """
import json, os
from datasets import load_dataset
from huggingface_hub import snapshot_download
from peft import LoraConfig
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
spec = json.loads(os.environ["TRAINYARD_SPEC"])
folder = snapshot_download(spec["rows"])
data = {"train": folder + "/rows.jsonl"}
if spec["validation"]:
    data["validation"] = snapshot_download(spec["validation"]) + "/rows.jsonl"
rows = load_dataset("json", data_files=data)
class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        values = {"step": state.global_step, "total_steps": state.max_steps, **(logs or {})}
        print("TRAINYARD " + json.dumps(values), flush=True)
lora = LoraConfig(task_type="CAUSAL_LM", **spec["lora"]) if spec["lora"] is not None else None
kinds = (DPOConfig, DPOTrainer) if spec["stage"] == "dpo" else (SFTConfig, SFTTrainer)
if spec["stage"] == "dpo":
    rows = rows.map(lambda row: {"prompt": row["input"]["messages"], "chosen": row["preferred_output"],
                                 "rejected": row["non_preferred_output"]}, remove_columns=rows["train"].column_names)
settings = kinds[0](output_dir="out", report_to="none", logging_steps=1, **spec["arguments"])
trainer = kinds[1](model=spec["base"], args=settings, train_dataset=rows["train"],
                   eval_dataset=rows.get("validation"), peft_config=lora, callbacks=[Report()])
trainer.train()
trainer.model.save_pretrained("result", safe_serialization=True)
trainer.processing_class.save_pretrained("result")
from huggingface_hub import HfApi
HfApi().create_repo(spec["result"], private=True, exist_ok=True)
HfApi().upload_folder(repo_id=spec["result"], folder_path="result")
"""
START = "import os; exec(os.environ['TRAINYARD_SCRIPT'])"
"""The client takes arguments for names of files, and a program is too long for one."""


class HfJobs:
    """Jobs of an account of the Hub."""

    def __init__(self, address: ProviderAddress) -> None:
        import httpx2  # the client's HTTP library
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        self.calls = ProviderCalls(NAME, (HfHubHTTPError, httpx2.HTTPError), address.keys)
        self.key = address.key
        self.api = HfApi(endpoint=address.base_url or None, token=address.key)
        self.name = address.variable("HF_JOBS_NAMESPACE")
        self.prices: dict[str, float] = {}

    @property
    def namespace(self) -> str:
        """Return the account or organization that pays; the key's own where none is named."""
        if not self.name:
            with self.calls("the name of the account"):
                self.name = str(self.api.whoami()["name"])
        return self.name

    def upload(self, path: Path, name: str) -> str:
        repository = f"{self.namespace}/{name.removesuffix('.jsonl')}"
        with self.calls("the upload of rows"):
            self.api.create_repo(repository, private=True, exist_ok=True)
            self.api.upload_file(path_or_fileobj=path, path_in_repo=ROWS, repo_id=repository)
        return repository

    def create(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        spec = describe(request, rows, f"{self.namespace}/{request.label}")
        service = request.config.service if request.config is not None else None
        with self.calls(f"the question for the base {request.model}"):
            self.api.model_info(request.model)  # a job that finds no base is paid, too
        with self.calls(f"the submission of {request.model}"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* is experimental", UserWarning)  # the release is pinned
            job = self.api.run_uv_job(
                "python", script_args=["-c", START], dependencies=list(PACKAGES),
                env={"TRAINYARD_SPEC": json.dumps(spec), "TRAINYARD_SCRIPT": SCRIPT}, secrets={"HF_TOKEN": self.key},
                flavor=(service.flavor if service is not None else None) or FLAVOR,
                timeout=int(request.timeout_s or TIMEOUT_S), name=request.label,
                labels={LABEL: request.run_key}, namespace=self.namespace,
            )  # fmt: skip
        return self.read_info(job)

    def find(self, run_key: str) -> list[RemoteJob]:
        with self.calls("the list of jobs"):
            jobs = list(self.api.list_jobs(labels={LABEL: run_key}, namespace=self.namespace))
        return [self.read_info(job) for job in jobs if (job.labels or {}).get(LABEL) == run_key]

    def read(self, job_id: str) -> RemoteJob:
        with self.calls(f"the state of {job_id}"):
            return self.read_info(self.api.inspect_job(job_id=job_id, namespace=self.namespace))

    def read_info(self, job: Any) -> RemoteJob:
        """Return a job, with what its minutes cost by the Hub's own list of prices."""
        word = getattr(job.status.stage, "value", job.status.stage)
        state = STATES.get(word, ProviderState.UNKNOWN)
        spec = json.loads((job.environment or {}).get("TRAINYARD_SPEC", "{}"))
        seconds = job.durations.running_secs if job.durations is not None else None
        price = self.price_of(str(job.flavor)) if state.over else None
        cost = None if price is None or seconds is None else seconds / 60 * price
        return RemoteJob(
            job.id, state, word, message=job.status.message or "", model=spec.get("result", ""), cost_usd=cost
        )

    def price_of(self, flavor: str) -> float | None:
        """Return the dollars of a minute of a flavour; None for one that the Hub lists no more."""
        if not self.prices:
            with self.calls("the list of prices"):
                self.prices = {row.name: row.unit_cost_usd for row in self.api.list_jobs_hardware()}
        return self.prices.get(flavor)

    def read_events(self, job_id: str, cursor: str) -> EventPage:
        del cursor  # a log is one page
        with self.calls(f"the log of {job_id}"):
            lines = list(self.api.fetch_job_logs(job_id=job_id, namespace=self.namespace))
        return EventPage([read_line(number, line) for number, line in enumerate(lines)])

    def cancel(self, job_id: str) -> None:
        with self.calls(f"the cancellation of {job_id}"):
            self.api.cancel_job(job_id=job_id, namespace=self.namespace)

    def download(self, job: RemoteJob, folder: Path) -> None:
        with self.calls(f"the download of {job.model}"):
            for name in self.api.list_repo_files(job.model):
                self.api.hf_hub_download(job.model, name, local_dir=folder)


def open_provider(address: ProviderAddress) -> HfJobs:
    return HfJobs(address)


def describe(request: CloudRequest, rows: UploadedRows, result: str) -> dict[str, Any]:
    """Return the settings of the program: base, repositories, adapter, and the arguments of TRL's config."""
    config = request.config
    arguments: dict[str, Any] = {
        "num_train_epochs": request.epochs, "per_device_train_batch_size": request.batch_size,
        "learning_rate": request.learning_rate,
    }  # fmt: skip
    lora: dict[str, Any] | None = {}
    if config is not None:
        hyper = config.hyperparameters
        arguments |= {
            "max_steps": hyper.max_steps, "gradient_accumulation_steps": hyper.gradient_accumulation,
            "warmup_ratio": hyper.warmup_ratio if hyper.warmup_steps is None else None,
            "warmup_steps": hyper.warmup_steps, "weight_decay": hyper.weight_decay,
            "max_grad_norm": hyper.max_grad_norm, "max_length": hyper.max_length, "seed": hyper.seed,
            "gradient_checkpointing": hyper.gradient_checkpointing, "lr_scheduler_type": hyper.schedule.value,
            "save_steps": hyper.save_steps, "beta": getattr(config.stage, "beta", None),
            "num_train_epochs": hyper.epochs,
        }  # fmt: skip
        method = config.method
        lora = drop_missing({
            "r": getattr(method, "rank", None), "lora_alpha": getattr(method, "alpha", None),
            "lora_dropout": getattr(method, "dropout", None), "target_modules": getattr(method, "target_modules", None),
        }) if method.type is Method.LORA else None  # fmt: skip
    return {
        "base": request.model, "stage": request.stage.value, "rows": rows.training, "validation": rows.validation,
        "result": result, "lora": lora, "arguments": drop_missing(arguments),
    }  # fmt: skip


def read_line(number: int, line: str) -> RemoteEvent:
    """Return a line of a job's log; one of our program has numbers."""
    if not line.startswith(MARK):
        return RemoteEvent(f"line-{number}", line[:500])
    try:
        values = json.loads(line.removeprefix(MARK))
    except ValueError:
        return RemoteEvent(f"line-{number}", line[:500])
    progress = read_number(values, "step", "total_steps", "epoch", "loss", "eval_loss", "learning_rate")
    return RemoteEvent(f"line-{number}", f"step {values.get('step')}", progress=progress)
