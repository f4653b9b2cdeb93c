"""Reasons that the foreign backends share: what of a job a tool does not carry out, told as one row a setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.backends.job import TrainingJob
from trainyard.errors import Reason
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import ADAPTER_METHODS, Method


@dataclass(frozen=True)
class Limit:
    """One setting of a job and the values that a tool takes."""

    field: str
    """Below `config`."""
    value: object
    allowed: tuple[object, ...]


def refused(job: TrainingJob, code: str, limits: Iterable[Limit]) -> list[Reason]:
    """A reason for every setting whose value is not allowed."""
    name = job.config.backend.value
    return [
        Reason(
            code=code,
            node=job.node or None,
            field=f"config.{limit.field}",
            because=f"The {name} backend does not carry out {limit.field.rsplit('.')[-1]} {said(limit.value)}.",
            instead=f"one of {', '.join(map(said, limit.allowed))}.",
        )
        for limit in limits
        if limit.value not in limit.allowed
    ]


def said(value: object) -> str:
    return "none" if value is None else str(value)


def four_bit_reasons(job: TrainingJob, code: str) -> list[Reason]:
    """Trainers whose 4-bit kernels are for CUDA, asked for a 4-bit base on a CPU."""
    config = job.config
    if config.method is not Method.QLORA or config.device is not Device.CPU:
        return []
    because = f"The {config.backend} backend trains through a 4-bit base on CUDA only."
    return [Reason(code, job.node or None, "config.method", because, "method lora, or device cuda.")]


def adapter_reasons(job: TrainingJob, code: str) -> list[Reason]:
    """What these backends cannot do with an earlier adapter: they continue it, and nothing else."""
    config, node = job.config, job.node or None
    if job.adapter is None:
        return []
    if config.adapter != "continue":
        because = f"The {config.backend} backend does not {config.adapter} adapters; it continues the one it is given."
        return [Reason(code, node, "config.adapter", because, "adapter: continue.")]
    if config.method not in ADAPTER_METHODS:
        because = f"Method {config.method} trains whole weights and cannot continue an adapter."
        return [Reason("R-ADAPTER-METHOD", node, "config.method", because, "the method of the earlier trainer.")]
    return []
