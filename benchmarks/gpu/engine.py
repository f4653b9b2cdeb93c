"""Our engine on a device as the child process of a job has it: assembled, trained for some steps, measured.

run = assembled(folder, base, {Port.SFT: rows}, config(place, "sft", "lora", max_steps=5), place)
losses = train_steps(run)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.platform import Platform
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.assembly import NativeRun, assemble, set_determinism
from trainyard.backends.native.program import save_checkpoint
from trainyard.compute.child import SPEC_FILE, Events
from trainyard.data.rows import ROWS_FILE, Row, write_rows
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.writer import CheckpointWriter
from trainyard.train.contracts import StepRecord
from trainyard.train.loop import count_done, train
from trainyard.train.progress import SavedProgress
from trainyard.train.session.session import Session

CHECKPOINTS = "checkpoints"


class StepClock:
    """A hook that notes each step, with the device finished."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.records, self.seconds = platform, list[StepRecord](), list[float]()
        self._last = time.perf_counter()

    def on_step(self, record: StepRecord) -> None:
        self.platform.synchronize()
        now = time.perf_counter()
        self.records.append(record)
        self.seconds.append(now - self._last)
        self._last = now


def config(platform: Platform, stage: Any, method: Any, *, engine: dict[str, Any] | None = None, **hyper: Any) -> Any:
    """A trainer's config; `quantization` is taken out of the hyperparameters."""
    hyperparameters = {
        "batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_ratio": 0.0,
        "max_length": 128,
        "max_steps": 5,
        **hyper,
    }
    quantization = hyperparameters.pop("quantization", None)
    return {
        "stage": stage, "method": method, "hyperparameters": hyperparameters, "engine": engine or {},
        "device": platform.device, "quantization": quantization,
    }  # fmt: skip


def make_job(folder: Path, base: Path, rows: dict[Port, Sequence[Row]], config: dict[str, Any]) -> TrainingJob:
    """A resolved job over these rows, whose files are in `folder`."""
    for port, port_rows in rows.items():
        (folder / port.value).mkdir(parents=True, exist_ok=True)
        write_rows(folder / port.value / ROWS_FILE, port, port_rows)
    return TrainingJob(
        config=resolve_trainer(TrainerConfig.model_validate(config), str(base)),
        data={port: str(folder / port.value) for port in rows},
        base=str(base),
        locks=str(folder),
    )


def assembled(
    folder: Path, base: Path, rows: dict[Port, Sequence[Row]], config: dict[str, Any], platform: Platform
) -> NativeRun:
    """A job's engine at its first step."""
    job = make_job(folder, base, rows, config)
    set_determinism(job)
    write_json_durably(folder / SPEC_FILE, job.model_dump(mode="json"))
    events = Events(folder / "events.jsonl")
    try:
        with contextlib.redirect_stdout(None):  # the account of the tokens
            return assemble(job, folder, events, platform.device)
    finally:
        events.close()


def train_steps(
    run: NativeRun,
    steps: int | None = None,
    *,
    hooks: Sequence[Any] = (),
    save: Callable[[Session, SavedProgress], None] | None = None,
    save_steps: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Train `steps` more steps, or to the end; the losses of all steps so far."""
    total = run.total_steps if steps is None else count_done(run.session) + steps
    train(
        run.session, run.feed, run.progress, total_steps=total, save=save or save_nothing,
        save_steps=save_steps or total + 1, stop=stop, hooks=hooks,
    )  # fmt: skip
    return [loss for _, loss, _ in run.progress.losses]


def save_nothing(_session: Session, _progress: SavedProgress) -> None:
    """No checkpoint."""


def saved_at_once(writer: CheckpointWriter) -> Callable[[Session, SavedProgress], None]:
    """A save that is on the disk when it returns."""

    def save(session: Session, progress: SavedProgress) -> None:
        save_checkpoint(writer, session, progress)
        writer.wait()

    return save


def weights_of(run: NativeRun) -> dict[str, torch.Tensor]:
    """Copies of the weights that move, on the CPU."""
    moving = {name: value for name, value in run.policy.model.named_parameters() if value.requires_grad}
    return {name: value.detach().cpu().clone() for name, value in moving.items()}
