"""QLoRA: a base in nf4, a paged optimizer, and states that come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.engine import CHECKPOINTS, config, saved_at_once, train_steps
from benchmarks.gpu.models import random_weights, write_config
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun
from trainyard.backends.native.program import resume
from trainyard.backends.native.proof import Silent, digests
from trainyard.spec.axes.quantization import NF4_BITS
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest

pytestmark = pytest.mark.gpu
STEPS = 8
QUANTISED_LOSS = 0.02
"""Relative difference between nf4 and float32 before the first step; the weights are random and small."""
Build = Callable[..., NativeRun]
Needs = Callable[[str], Any]


@pytest.fixture(autouse=True)
def bitsandbytes(needs: Needs) -> Any:
    return needs("bitsandbytes")


def qlora(platform: Platform, **hyper: Any) -> Any:
    """On a CPU `auto` measures, so two trainings could take two precisions."""
    precision = "fp32" if platform.rehearsal else "auto"
    return config(
        platform, "sft", "qlora", batch_size=8, max_steps=STEPS, learning_rate=2e-3, precision=precision, **hyper
    )


def count_packed_bytes(run: NativeRun) -> int:
    """Bytes of the packed weights with their scales."""
    states = [value.quant_state for value in run.policy.model.parameters() if hasattr(value, "quant_state")]
    packed_sizes = [value.numel() for value in run.policy.model.parameters() if value.dtype is torch.uint8]
    return sum(packed_sizes) + sum(state.absmax.numel() * state.absmax.element_size() for state in states)


def test_an_nf4_base_takes_the_bits_that_the_plan_counts(platform: Platform, build: Build, bitsandbytes: Any) -> None:
    run = build(qlora(platform))
    layers = [m for m in run.policy.model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    assert layers
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    assert count_packed_bytes(run) * 8 / weights == pytest.approx(NF4_BITS, rel=0.02)
    assert all(str(layer.weight.device).startswith(platform.device) for layer in layers)


def test_the_loss_of_an_nf4_base_is_close_to_the_one_in_full_precision(platform: Platform, build: Build) -> None:
    quantised = train_steps(build(qlora(platform)), 1)
    whole = train_steps(build({**qlora(platform), "method": "lora"}), 1)
    assert quantised == pytest.approx(whole, rel=QUANTISED_LOSS)


def test_a_base_that_is_made_on_the_device_trains_like_one_that_was_read(
    platform: Platform, build: Build, tmp_path: Path, base: Path
) -> None:
    """What the memory tests of large shapes rely on."""
    write_config(tmp_path / "unread", "small", platform)
    read = build(qlora(platform))
    with random_weights():
        made_run = build(qlora(platform))
    kinds = [[type(module).__name__ for module in run.policy.model.modules()] for run in (read, made_run)]
    assert kinds[0] == kinds[1]
    assert count_packed_bytes(made_run) == count_packed_bytes(read)
    losses = train_steps(made_run)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw_8bit"])
def test_an_8_bit_optimizer_trains_and_continues_to_the_same_bits(
    optimizer: str, platform: Platform, build: Build, tmp_path: Path
) -> None:
    trainer_config = {**qlora(platform, optimizer=optimizer), "method": {"type": "qlora", "rank": 64}}
    straight = build(trainer_config, name="straight")
    losses = train_steps(straight)
    assert losses[-1] < losses[0]
    states = straight.session.engine.optimizer.state_dict()
    assert "torch.uint8" in str(states), "no state is in 8 bits"
    with CheckpointWriter(tmp_path / "first" / CHECKPOINTS) as writer:
        first = build(trainer_config, name="first")
        train_steps(first, STEPS // 2)
        saved_at_once(writer)(first.session, first.progress)
    second = build(trainer_config, name="second")
    newest = find_newest(tmp_path / "first" / CHECKPOINTS, None)
    assert newest.path is not None
    resume(second, newest.path, Silent())
    train_steps(second)
    assert digests(second) == digests(straight)


def test_a_paged_state_is_in_memory_that_cuda_pages(card: Platform, build: Build) -> None:
    run = build({**qlora(card, optimizer="paged_adamw_8bit"), "method": {"type": "qlora", "rank": 64}})
    train_steps(run, 2)
    inner = run.session.engine.optimizer.inner
    assert type(inner).__name__ == "PagedAdamW8bit"
    large = [state["state1"] for state in inner.state.values() if state.get("state1") is not None]
    # bitsandbytes pages states of 100,000 elements and more
    assert [value for value in large if value.numel() >= 1e5] == [v for v in large if getattr(v, "is_paged", False)]
