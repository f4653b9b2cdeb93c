"""Memory and steps of a training over several processes, held against the ZeRO paper."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.chains import node, source
from tests.unit.spec.test_estimate import LLAMA_2_7B, estimate_nodes, shape, trainer
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.memory import GIB, estimate_memory
from trainyard.spec.training import TrainerConfig


def make_shared(strategy: str, processes: int, **launch: Any) -> TrainerConfig:
    backend = "deepspeed" if strategy == "zero3" else "trl" if strategy == "fsdp" else "native"
    launched = {"strategy": strategy, "processes": processes, **launch}
    hyper = {"batch_size": 1, "max_length": 1024, "gradient_checkpointing": True}
    return trainer(backend=backend, method="full", hyperparameters=hyper, launch=launched)


ZERO_PAPER = shape(4096, 36, 10901, 32000, 32, 32)
"""7.5 billion parameters, the example of arXiv 1910.02054."""


@pytest.mark.parametrize(
    ("strategy", "processes", "gigabytes"),
    [
        ("single", 1, 120.0),  # figure 1 of the paper
        ("ddp", 64, 120.0),
        ("zero1", 64, 8 * 7.5 + 8 * 7.5 / 64),  # our optimizer has no copy of the weights: K is 8, gradients have 4
        ("zero2", 64, 4 * 7.5 + 12 * 7.5 / 64),
        ("zero3", 64, 1.9),  # figure 1
        ("fsdp", 64, 1.9),
        ("fsdp_hybrid", 64, 120.0 / 32),
    ],
)
def test_states_are_divided_as_in_the_zero_paper(strategy: str, processes: int, gigabytes: float) -> None:
    assert ZERO_PAPER.parameters / 1e9 == pytest.approx(7.5, abs=0.01)
    memory = estimate_memory(ZERO_PAPER, make_shared(strategy, processes), Device.CUDA)
    states = memory.weights + memory.gradients + memory.optimizer
    assert states / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "processes", "gib"),
    [("ddp", 8, 107.53), ("zero1", 8, 61.41), ("zero2", 8, 38.34), ("zero3", 8, 16.30), ("fsdp_hybrid", 8, 29.48)],
)
def test_memory_on_each_device_golden(strategy: str, processes: int, gib: float) -> None:
    assert estimate_memory(LLAMA_2_7B, make_shared(strategy, processes), Device.CUDA).total / GIB == pytest.approx(
        gib, abs=0.01
    )


def test_what_processes_divide_and_what_each_has_whole() -> None:
    whole, hybrid = (estimate_memory(LLAMA_2_7B, config, Device.CUDA) for config in (
        make_shared("ddp", 8), make_shared("fsdp_hybrid", 8, shard_size=2)
    ))  # fmt: skip
    assert (hybrid.weights, hybrid.gradients, hybrid.optimizer) == (
        -(-whole.weights // 2), -(-whole.gradients // 2), -(-whole.optimizer // 2),
    )  # fmt: skip
    assert (hybrid.activations, hybrid.logits, hybrid.context) == (whole.activations, whole.logits, whole.context)
    root = 2 * 32000 * 4096 + 4096
    assert (whole.gathered, hybrid.gathered) == (0, 4 * max(LLAMA_2_7B.block, root))


def test_the_plan_tells_the_memory_of_each_device_and_the_steps_of_all() -> None:
    base = make_shared("zero2", 4).model_copy(update={"base_model": "m"})
    hyper = base.hyperparameters.model_copy(update={"epochs": 1.0, "max_steps": None, "gradient_accumulation": 2})
    config = base.model_copy(update={"hyperparameters": hyper}).model_dump(mode="json")
    facts = {"rows": {"data-source": {Port.SFT: 800}}, "shapes": {"m": LLAMA_2_7B}, "device": Device.CUDA}
    trainer_estimate = estimate_nodes(source(), node("trainer", **config), **facts)["trainer"]
    assert (trainer_estimate.devices, trainer_estimate.steps) == (4, 100)
    assert trainer_estimate.memory_bytes == estimate_memory(LLAMA_2_7B, base, Device.CUDA).total
    assert "steps: at most 800 rows, 8 a step, 1 epochs" in trainer_estimate.basis
    assert any(
        line.startswith("memory on cuda in GiB for each of 4 processes (zero2) for rows")
        for line in trainer_estimate.basis
    )
