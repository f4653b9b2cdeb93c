"""A card computes what a CPU computes: the same losses, gradients and weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.gpu.engine import config, train_steps, weights_of
from benchmarks.gpu.platform import Platform
from trainyard.backends.native.assembly import NativeRun

pytestmark = pytest.mark.gpu
STAGES = ("cpt", "sft", "dpo", "reward", "kto")
STEPS, CLOSE = 10, 1e-4
"""As close as our losses are to TRL's on a CPU."""
Build = Callable[..., NativeRun]


def configure_plain(platform: Platform, stage: str, method: str = "full", **hyper: Any) -> Any:
    """float32, padded batches, SDPA: nothing that a device chooses for itself."""
    hyperparameters = {"precision": "fp32", "max_steps": STEPS, "learning_rate": 1e-4, **hyper}
    return config(platform, stage, method, engine={"batching": "padded", "attention": "sdpa"}, **hyperparameters)


@pytest.mark.parametrize("stage", STAGES)
def test_the_losses_of_a_training_are_those_of_a_cpu(stage: str, platform: Platform, build: Build) -> None:
    trainer_config = configure_plain(platform, stage)
    here, there = (train_steps(build(trainer_config, device=device)) for device in (platform.device, "cpu"))
    assert len(here) == STEPS
    assert here == pytest.approx(there, abs=CLOSE)
    assert here[-1] != here[0]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_gradients_of_a_batch_are_those_of_a_cpu(method: str, platform: Platform, build: Build) -> None:
    here, there = (
        build(configure_plain(platform, "sft", method), device=device) for device in (platform.device, "cpu")
    )
    weights = weights_of(here)
    gradients = []
    for run in (here, there):
        moving = {name: value for name, value in run.policy.model.named_parameters() if value.requires_grad}
        for name, value in moving.items():  # a device may draw the weights of a new adapter on its own
            value.data.copy_(weights[name])
        batch = run.feed.batch(run.feed.plan.steps(0)[0][0])
        run.session.backward(run.session.forward(batch).forward_id, measure=False)
        gradients.append({name: value.grad.cpu() for name, value in moving.items() if value.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == weights.keys()
    for name, value in gradients[0].items():
        torch.testing.assert_close(value, gradients[1][name], rtol=1e-3, atol=1e-5)
