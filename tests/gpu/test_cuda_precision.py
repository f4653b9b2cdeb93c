"""fp16 with a loss scale, and float8 products next to bf16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.gpu.engine import config, train_steps
from benchmarks.gpu.models import full_rows
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun
from trainyard.spec.axes.devices import Precision
from trainyard.train.model.precision import convert_to_fp8
from trainyard.train.session.session import FIRST_SCALE, Session

pytestmark = pytest.mark.gpu
FP16_LOSS, FP8_LOSS = 0.02, 0.02
"""Largest relative difference of the loss of any step from float32's, and from bf16's."""
FP8_STEPS, FP8_CAPABILITY = 50, (8, 9)
"""Ada is the first with float8 products."""
Build = Callable[..., NativeRun]
Needs = Callable[[str], Any]


def settings(platform: Platform, precision: str, steps: int, *, fp8: str = "off", rate: float = 1e-3) -> Any:
    hyperparameters = {
        "precision": precision,
        "max_steps": steps,
        "batch_size": 8,
        "learning_rate": rate,
        "max_length": 64,
    }
    return config(platform, "sft", "full", engine={"batching": "padded", "fp8": fp8}, **hyperparameters)


def has_bf16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)


def train_in_fp16(platform: Platform, build: Build, steps: int) -> NativeRun:
    """A training in fp16. On a CPU the engine refuses it, so a rehearsal opens the session by hand."""
    run = build(settings(platform, "fp32" if platform.rehearsal else "fp16", steps))
    if platform.rehearsal:
        run.session = Session(replace(run.session.engine, precision=Precision.FP16), run.session.folder)
    return run


def test_fp16_trains_with_a_loss_scale_and_stays_close_to_float32(platform: Platform, build: Build) -> None:
    run = train_in_fp16(platform, build, 20)
    assert run.session.scaler.is_enabled()
    assert run.session.scaler.get_scale() == FIRST_SCALE
    half = train_steps(run)
    full = train_steps(build(settings(platform, "fp32", 20)))
    assert run.session.skipped == 0
    assert half == pytest.approx(full, rel=FP16_LOSS)
    assert half[-1] < half[0]


def test_a_step_with_overflowing_gradients_is_skipped_and_counted(platform: Platform, build: Build) -> None:
    run = train_in_fp16(platform, build, 6)
    before = {name: value.detach().clone() for name, value in run.policy.model.named_parameters()}
    run.session.scaler = torch.amp.GradScaler(platform.device, init_scale=2.0**40)
    train_steps(run, 1)
    assert (run.session.skipped, run.session.global_step) == (1, 0)
    assert all(torch.equal(value, before[name]) for name, value in run.policy.model.named_parameters())
    assert run.session.scaler.get_scale() == 2.0**39
    run.session.scaler = torch.amp.GradScaler(platform.device, init_scale=FIRST_SCALE)
    train_steps(run, 2)
    assert run.session.global_step == 2


def test_auto_takes_bf16_where_the_card_has_it_and_fp16_elsewhere(card: Platform, build: Build) -> None:
    run = build(settings(card, "auto", 1))
    assert run.precision.precision is (Precision.BF16 if has_bf16() else Precision.FP16), run.precision.why


def test_float8_products_stay_close_to_bf16(platform: Platform, build: Build, needs: Needs) -> None:
    needs("torchao")
    if not platform.rehearsal and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        pytest.skip(f"{platform.name()} has no float8 products")
    steps = 6 if platform.rehearsal else FP8_STEPS
    rows = full_rows(8, 45)  # 360 positions a batch: float8 products want multiples of 16
    half = train_steps(build(settings(platform, "bf16", steps, rate=3e-4), rows=rows))
    run = build(settings(platform, "bf16", steps, fp8="off" if platform.rehearsal else "torchao", rate=3e-4), rows=rows)
    if platform.rehearsal:  # a CPU has no float8 products: torchao computes them in higher precision, with the rounding
        convert_to_fp8(run.policy.model, emulate=True)
    assert [module for module in run.policy.model.modules() if type(module).__name__ == "Float8Linear"]
    eighth = train_steps(run)
    assert len(eighth) == steps
    assert eighth == pytest.approx(half, rel=FP8_LOSS)
    assert eighth != half, "the products were not rounded to float8"
