"""Optimizers: what each needs, where it runs and what it is for. `train/optimizers` builds them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue, Facts
from trainyard.spec.axes.devices import CPU_AND_GPUS, EVERY_DEVICE, Device
from trainyard.spec.packages import BITSANDBYTES, GALORE, SCHEDULE_FREE, TORCH, TRANSFORMERS, Package


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts(Facts):
    """An optimizer."""

    why: str
    """When to use it, with its source."""
    package: Package = TORCH
    devices: tuple[Device, ...] = EVERY_DEVICE
    trains: str = "all weights"
    """Which weights it moves in its own way."""
    state_bytes: int = 8
    """Bytes of state per trained parameter; two fp32 moments take 8."""
    whole_tensors: bool = False
    """Whether it looks at whole matrices or blocks, and computes something else on a part of one."""


class Optimizer(AxisValue):
    """Optimizer: how a step is computed from the gradients."""

    facts: OptimizerFacts

    ADAMW = OptimizerFacts("adamw", why="The default (arXiv 1711.05101), in torch's fused form.")
    SGD = OptimizerFacts(
        "sgd",
        why="One state, momentum 0.9; needs a learning rate of its own, a hundred times AdamW's and more.",
        state_bytes=4,
    )
    ADAMW_8BIT = OptimizerFacts(
        "adamw_8bit",
        why="A quarter of AdamW's states (arXiv 2110.02861).",
        package=BITSANDBYTES,
        devices=CPU_AND_GPUS,
        trains="all weights; states of 8 bit for tensors of 4096 elements and more",
        state_bytes=2,
        whole_tensors=True,
    )
    PAGED_ADAMW_8BIT = OptimizerFacts(
        "paged_adamw_8bit",
        why="As adamw_8bit, with states that spill into the host's memory at a peak (arXiv 2305.14314).",
        package=BITSANDBYTES,
        devices=CPU_AND_GPUS,
        trains="as adamw_8bit",
        state_bytes=2,
        whole_tensors=True,
    )
    ADAFACTOR = OptimizerFacts(
        "adafactor",
        why="Hardly any state (arXiv 1804.04235); the learning rate is taken as given.",
        package=TRANSFORMERS,
        trains="all weights; factored states for matrices",
        state_bytes=0,
        whole_tensors=True,
    )
    LION = OptimizerFacts(
        "lion",
        why="One state, steps of one size (arXiv 2302.06675): a third to a tenth of AdamW's learning rate.",
        package=BITSANDBYTES,
        devices=CPU_AND_GPUS,
        state_bytes=4,
    )
    MUON = OptimizerFacts(
        "muon",
        why="Orthogonal steps for whole matrices (Jordan 2024), as large as AdamW's, so at its learning rate.",
        trains="the matrices of the blocks; AdamW moves the rest",
        state_bytes=4,
        whole_tensors=True,
    )
    SCHEDULE_FREE_ADAMW = OptimizerFacts(
        "schedule_free_adamw",
        why="Averages the weights instead of lowering the rate (arXiv 2405.15682): constant schedules.",
        package=SCHEDULE_FREE,
    )
    GALORE = OptimizerFacts(
        "galore",
        why="Full weights with the states of rank 128 (arXiv 2403.03507).",
        package=GALORE,
        trains="the matrices of the blocks; AdamW moves the rest",
        state_bytes=2,
        whole_tensors=True,
    )
    ADEMAMIX = OptimizerFacts(
        "ademamix",
        why="A second, slow average that remembers ten thousand steps (arXiv 2409.03137): long runs.",
        package=BITSANDBYTES,
        devices=CPU_AND_GPUS,
        state_bytes=12,
    )
