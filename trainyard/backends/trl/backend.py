"""The `trl` backend, seen from the parent: what it can do, and the command that does it. Imports no torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.surroundings import environment
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.axes.methods import ADAPTER_METHODS, Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage

PROGRAM = "trainyard.backends.trl.program:train"
NEEDED = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")
STAGES = (Stage.SFT, Stage.DPO, Stage.KTO, Stage.REWARD, Stage.GRPO)
METHODS = (Method.LORA, Method.DORA, Method.FULL)
LOSSES = (PreferenceLoss.SIGMOID, PreferenceLoss.HINGE, PreferenceLoss.IPO)
OPTIMIZERS = {
    Optimizer.ADAMW: "adamw_torch",
    Optimizer.SGD: "sgd",
    Optimizer.ADAMW_8BIT: "adamw_8bit",
    Optimizer.PAGED_ADAMW_8BIT: "paged_adamw_8bit",
    Optimizer.ADAFACTOR: "adafactor",
    Optimizer.LION: "lion_32bit",
    Optimizer.ADEMAMIX: "ademamix",
}
"""Ours -> the name that transformers gives it."""
SCHEDULES = {
    Schedule.LINEAR: "linear",
    Schedule.COSINE: "cosine",
    Schedule.CONSTANT: "constant",
    Schedule.CONSTANT_WITH_WARMUP: "constant_with_warmup",
    Schedule.COSINE_WITH_RESTARTS: "cosine_with_restarts",
    Schedule.POLYNOMIAL: "polynomial",
    Schedule.INVERSE_SQRT: "inverse_sqrt",
    Schedule.WSD: "warmup_stable_decay",
}


def probe(_settings: Settings | None = None) -> Probe:
    """All its packages are dependencies of ours; a broken installation is reported all the same."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Probe(
            False, why=f"Not installed: {', '.join(missing)}.", fix="Run `make setup`, or install trainyard again."
        )
    return Probe(True, version=importlib.metadata.version("trl"))


def reasons(job: TrainingJob) -> list[Reason]:
    """Every axis value of the job that this backend does not carry out."""
    config, hyper = job.config, job.config.hyperparameters
    rows = [
        (config.stage in STAGES, "R-TRL-STAGE", "stage", config.stage, STAGES),
        (config.method in METHODS, "R-TRL-METHOD", "method", config.method, METHODS),
        (config.quantization is None, "R-TRL-QUANTIZATION", "quantization", config.quantization, ("none",)),
        (hyper.optimizer in OPTIMIZERS, "R-TRL-OPTIMIZER", "hyperparameters.optimizer", hyper.optimizer, OPTIMIZERS),
        (hyper.schedule in SCHEDULES, "R-TRL-SCHEDULE", "hyperparameters.schedule", hyper.schedule, SCHEDULES),
        (
            config.stage is not Stage.DPO or config.preference.loss in LOSSES,
            "R-TRL-LOSS",
            "preference.loss",
            config.preference.loss,
            LOSSES,
        ),
    ]
    found = [
        Reason(
            code=code,
            node=job.node or None,
            field=f"config.{field}",
            because=f"The trl backend does not carry out {field.rsplit('.')[-1]} {value}.",
            instead=f"one of {', '.join(map(str, allowed))}.",
        )
        for fine, code, field, value, allowed in rows
        if not fine
    ]
    return found + adapter_reasons(job)


def adapter_reasons(job: TrainingJob) -> list[Reason]:
    """What this backend cannot do with an earlier adapter."""
    config = job.config
    if job.adapter is None:
        return []
    node = job.node or None
    if config.adapter != "continue":
        because = f"The trl backend does not {config.adapter} adapters; it continues the one it is given."
        return [Reason("R-TRL-ADAPTER", node, "config.adapter", because, "adapter: continue.")]
    if config.method not in ADAPTER_METHODS:
        because = f"Method {config.method} trains whole weights and cannot continue an adapter."
        return [Reason("R-ADAPTER-METHOD", node, "config.method", because, "the method of the earlier trainer.")]
    return []


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The launcher enters the contract first, so a stop during the slow imports is already understood."""
    return launching.command(job, PROGRAM, folder)


__all__ = ["command", "environment", "probe", "reasons"]
