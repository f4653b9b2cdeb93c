"""A training that was stopped and continued ends in the bits of one that was not, under deterministic flags."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.engine import CHECKPOINTS, config, saved_at_once, train_steps
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun, settle_kernels
from trainyard.backends.native.program import resume
from trainyard.backends.native.proof import Silent, count_calls, digests
from trainyard.spec.axes.devices import Precision
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest
from trainyard.train.session.session import Session

pytestmark = pytest.mark.gpu
STEPS, STOP_AFTER = 6, 7
"""Micro-batches after which the first attempt stops: inside the accumulation of its fourth step."""
CELLS = [
    ("sft", "lora", "bf16", "packed"),
    ("sft", "full", "bf16", "padded"),
    ("sft", "full", "fp32", "padded"),
    ("dpo", "lora", "bf16", "auto"),
    ("kto", "full", "bf16", "auto"),
    ("sft", "lora", "fp16", "packed"),
    ("sft", "qlora", "bf16", "packed"),
]
Cell = tuple[str, str, str, str]
Build = Callable[..., NativeRun]
Needs = Callable[[str], Any]


def settings(platform: Platform, stage: str, method: str, precision: str, batching: str) -> Any:
    method_settings: Any = {"type": method, "dropout": 0.1} if "lora" in method else method
    hyperparameters = {
        "precision": precision,
        "batch_size": 4,
        "gradient_accumulation": 2,
        "max_length": 64,
        "max_steps": STEPS,
    }
    more = {"schedule": "cosine", "warmup_ratio": 0.5, "learning_rate": 1e-3}
    return config(
        platform, stage, method_settings, engine={"batching": batching, "token_budget": 256}, **hyperparameters, **more
    )


def start_run(platform: Platform, build: Build, trainer_config: Any, name: str) -> NativeRun:
    """The run of a config. fp16 is refused on a CPU, so a rehearsal opens its session by hand."""
    half = trainer_config["hyperparameters"]["precision"] == "fp16" and platform.rehearsal
    if half:
        trainer_config = {
            **trainer_config,
            "hyperparameters": {**trainer_config["hyperparameters"], "precision": "fp32"},
        }
    run = build(trainer_config, name=name)
    if half:
        run.session = Session(replace(run.session.engine, precision=Precision.FP16), run.session.folder)
    return run


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_a_stopped_training_continues_to_the_same_bits(
    cell: Cell, platform: Platform, build: Build, needs: Needs, tmp_path: Path
) -> None:
    if "qlora" in cell:
        needs("bitsandbytes")
    trainer_config = settings(platform, *cell)
    straight = start_run(platform, build, trainer_config, "straight")
    train_steps(straight)
    again = start_run(platform, build, trainer_config, "again")
    train_steps(again)
    assert digests(again) == digests(straight), "two trainings differ without any stop"

    first = start_run(platform, build, trainer_config, "first")
    with CheckpointWriter(tmp_path / "first" / CHECKPOINTS) as writer:
        train_steps(first, save=saved_at_once(writer), stop=count_calls(STOP_AFTER, lambda: True))
    assert len(first.progress.losses) < STEPS
    second = start_run(platform, build, trainer_config, "second")
    newest = find_newest(tmp_path / "first" / CHECKPOINTS, None)
    assert newest.path is not None
    resume(second, newest.path, Silent())
    train_steps(second)
    assert digests(second) == digests(straight)


def test_the_flags_that_make_kernels_deterministic_are_set(platform: Platform, build: Build) -> None:
    build(settings(platform, "sft", "lora", "fp32", "auto"))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert os.environ["FLASH_ATTENTION_DETERMINISTIC"] == "1"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_card_takes_deterministic_kernels_alone(platform: Platform, build: Build) -> None:
    """Looking for others leaves no trace. A CPU needs no strict kernels, so a rehearsal looks by hand."""
    trainer_config = settings(platform, "sft", "lora", "fp32" if platform.rehearsal else "bf16", "packed")
    run = build(trainer_config)
    assert run.session.engine.strict is not platform.rehearsal, run.policy.facts
    tensors, values = run.session.snapshot().flat()
    before = {name: value.clone() for name, value in tensors.items()}
    settle_kernels(run.session, run.feed, run.policy, Silent())
    assert run.session.engine.strict, run.policy.facts["deterministic"]
    tensors, flat_values = run.session.snapshot().flat()
    assert flat_values == values
    assert tensors.keys() == before.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in before.items())
    losses = train_steps(run)
    assert losses[-1] < losses[0]


def test_no_kernel_of_a_training_warns_that_it_is_not_deterministic(
    platform: Platform, build: Build, recwarn: pytest.WarningsRecorder
) -> None:
    for stage, method, precision, batching in CELLS[:4]:
        train_steps(
            start_run(platform, build, settings(platform, stage, method, precision, batching), f"{stage}-{precision}"),
            1,
        )
    warning_texts = {
        str(warning.message).partition(".")[0] for warning in recwarn if "determinis" in str(warning.message)
    }
    assert not warning_texts
