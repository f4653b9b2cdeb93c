"""Every method trains with the objectives of chat and preference rows, in the precision that the device takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu.engine import config, train_steps, weights_of
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun, policy_request
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.methods import TRAINED_METHODS, Method
from trainyard.train.methods.table import save

pytestmark = pytest.mark.gpu
METHODS = tuple(method.value for method in TRAINED_METHODS)
CELLS = [(stage, method) for method in METHODS for stage in ("sft", "dpo")]
STEPS = 12
SAME_MODEL = 0.02
"""bf16, or nf4 with random weights, against float32: relative difference of the loss before the first step."""
Build = Callable[..., NativeRun]


def configure_all_rows(platform: Platform, stage: str, method: str, **hyper: Any) -> Any:
    """Every step sees all rows, so that each lowers the loss that the next one starts from."""
    return config(platform, stage, method, batch_size=8, max_steps=STEPS, learning_rate=2e-3, **hyper)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_a_method_trains_and_leaves_its_result(
    cell: tuple[str, str], platform: Platform, build: Build, needs: Callable[[str], Any], tmp_path: Path
) -> None:
    stage, method = cell
    quantised = Method(method).facts.quantised
    if quantised:
        needs("bitsandbytes")
    trainer_config = configure_all_rows(platform, stage, method)
    run = build(trainer_config)
    if not platform.rehearsal:
        half = Precision.BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else Precision.FP16
        assert run.precision.precision is half
        assert run.cut.mode == "packed" or stage != "sft", run.cut.why
    before = weights_of(run)
    losses = train_steps(run)
    assert losses[-1] < losses[0]
    after = weights_of(run)
    assert any(not torch.equal(value, after[name]) for name, value in before.items())
    save(run.policy, policy_request(run.job, run.device), tmp_path / "result")
    written = load_file(next((tmp_path / "result").glob("*.safetensors")))
    assert all(bool(torch.isfinite(value.float()).all()) for value in written.values())


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_the_first_loss_of_a_device_is_that_of_float32_on_a_cpu(stage: str, platform: Platform, build: Build) -> None:
    here = train_steps(build(configure_all_rows(platform, stage, "lora")), 1)
    there = train_steps(build(configure_all_rows(platform, stage, "lora", precision="fp32"), device="cpu"), 1)
    assert here == pytest.approx(there, rel=SAME_MODEL)


def test_every_optimizer_of_torch_moves_the_weights(platform: Platform, build: Build) -> None:
    for optimizer in ("adamw", "sgd", "adafactor", "muon"):
        run = build(configure_all_rows(platform, "sft", "full", optimizer=optimizer))
        losses = train_steps(run, 4)
        assert losses[-1] < losses[0], optimizer
