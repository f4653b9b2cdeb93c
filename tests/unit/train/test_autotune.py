"""Autotune on a real machine: what it takes, and estimates held against the resident memory of real trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.unit.train.memory_child import build
from trainyard.compute.gpus import device_memory
from trainyard.errors import LimitExceeded
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method
from trainyard.spec.estimate.cascade import choose
from trainyard.spec.estimate.memory import CHUNKED_ABOVE, GIB, LOGITS_PER_CHUNK, estimate_memory
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.model import head

MEMORY = device_memory(Device.CPU) or 0

TINY = ModelShape(hidden=64, layers=2, feed_forward=128, vocabulary=600, heads=4, key_value_heads=4, head_size=16)
HUGE = ModelShape(
    hidden=16384, layers=126, feed_forward=53248, vocabulary=128256, heads=128, key_value_heads=8, head_size=128
)
CHILD = Path(__file__).with_name("memory_child.py")
SMALL = {
    "method": "lora", "hidden": 256, "layers": 8, "feed_forward": 1024, "vocabulary": 8000, "rows": 8, "length": 256,
    "rank": 16, "dropout": 0.0, "checkpointing": False, "head": "full",
}  # fmt: skip


def native(**config: Any) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate({"backend": "native", **config}), "starter")


# What is chosen here


def test_a_small_model_trains_in_full_here() -> None:
    choice = choose(TINY, native(hyperparameters={"max_length": 64}), MEMORY, Device.CPU)
    assert (choice.rung, choice.knobs) == (Method.FULL, ())
    assert choice.memory_bytes > choice.needed_bytes


def test_a_huge_model_does_not_fit_anywhere_here() -> None:
    if psutil.virtual_memory().total > 200 * 2**30:
        pytest.skip("this machine is large")
    with pytest.raises(LimitExceeded, match="GiB are missing"):
        choose(HUGE, native(), MEMORY, Device.CPU)


def test_the_estimate_knows_the_size_of_a_chunk() -> None:
    assert LOGITS_PER_CHUNK == head.CHUNK_LOGITS
    assert CHUNKED_ABOVE >= LOGITS_PER_CHUNK


# Estimates against measurements


def measure_memory(settings: dict[str, Any]) -> dict[str, int]:
    """What a child process held at its peak, and after its imports."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    peaks: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def estimate_total(settings: dict[str, Any]) -> int:
    hidden, method = settings["hidden"], settings["method"]
    shape = ModelShape(
        hidden=hidden,
        layers=settings["layers"],
        feed_forward=settings["feed_forward"],
        vocabulary=settings["vocabulary"],
        heads=8,
        key_value_heads=8,
        head_size=hidden // 8,
    )
    latent = {"stage": {"type": "sft", "latent": settings["latent"]}} if "latent" in settings else {}
    config = native(
        **latent,
        method={"type": method, "rank": settings["rank"], "dropout": settings["dropout"]},
        engine={"head": settings["head"], "batching": "padded"},
        hyperparameters={
            "batch_size": settings["rows"],
            "max_length": settings["length"],
            "gradient_checkpointing": settings["checkpointing"],
        },
    )
    return estimate_memory(shape, config, Device.CPU).total


@pytest.mark.slow
def test_the_libraries_take_what_the_estimate_says() -> None:
    sizes = measure_memory({**SMALL, "hidden": 64, "layers": 1, "feed_forward": 128, "vocabulary": 600, "length": 16})
    assert sizes["imports"] <= sizes["peak"]
    # How much of the libraries is resident differs between two installations of the same versions: 0.43 and 0.76 GiB.
    context = Device.CPU.facts.context_gib * GIB
    assert context / 2 < sizes["peak"] < 2 * context


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"method": "full"},
        {"method": "freeze"},
        {"method": "qlora"},
        {"dropout": 0.05},
        {"checkpointing": True},
        {"method": "full", "checkpointing": True},
        {"method": "full", "vocabulary": 32000, "layers": 2, "feed_forward": 512},
        {"method": "full", "vocabulary": 32000, "layers": 2, "feed_forward": 512, "head": "chunked"},
        {"hidden": 512, "feed_forward": 1408, "length": 512},
    ],
    ids=lambda other: " ".join(f"{name}={value}" for name, value in other.items()) or "lora",
)
def test_estimate_is_near_the_resident_memory_of_a_training(other: dict[str, Any]) -> None:
    settings = {**SMALL, **other}
    assert estimate_total(settings) == pytest.approx(measure_memory(settings)["peak"], rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"latent": {"type": "coconut", "max_stage": 3, "thoughts_per_step": 8}},
        {"latent": {"type": "codi", "thoughts": 16}},
        {"latent": {"type": "dsa", "granularity": {"type": "token", "top_k": 64}}, "rows": 2, "length": 512},
        {"latent": {"type": "dsa", "granularity": {"type": "head"}}, "rows": 2, "length": 512},
        {"latent": {"type": "quiet_star", "thought_tokens": 3, "ahead": 2}, "rows": 2, "length": 96},
    ],
    ids=lambda other: other["latent"]["type"],
)
def test_thoughts_take_no_more_than_the_estimate_of_a_row_of_full_length(other: dict[str, Any]) -> None:
    """Labels, prompts and thoughts of a row share its length, and the estimate has the most of each."""
    settings = {**SMALL, **other}
    assert 0.6 * estimate_total(settings) < measure_memory(settings)["peak"] < 1.15 * estimate_total(settings)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_estimate_is_near_what_cuda_allocated() -> None:
    settings = {**SMALL, "hidden": 1024, "layers": 16, "feed_forward": 2816, "vocabulary": 32000, "length": 512}
    torch.cuda.reset_peak_memory_stats()
    allocated = cuda_training(settings)
    shape = ModelShape(
        hidden=1024, layers=16, feed_forward=2816, vocabulary=32000, heads=8, key_value_heads=8, head_size=128
    )
    hyper = {"batch_size": settings["rows"], "max_length": settings["length"]}
    config = native(
        method={"type": "lora", "rank": 16}, engine={"head": "full", "batching": "padded"}, hyperparameters=hyper
    )
    estimate = estimate_memory(shape, config, Device.CUDA)
    assert estimate.total - estimate.context - estimate.fragments == pytest.approx(allocated, rel=0.2)


def cuda_training(settings: dict[str, Any]) -> int:
    """Most bytes that tensors held in three steps of LoRA in bfloat16."""
    torch.manual_seed(0)
    model = build(settings).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    for _ in range(3):
        ids = torch.randint(0, settings["vocabulary"], (settings["rows"], settings["length"]), device="cuda")
        batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
        (-head.label_logprobs(model, batch).logprobs_N.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()
