"""Strategies: how a distributed training is shared. `train/parallel` and the backends' launchers implement them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue, Facts


@dataclass(frozen=True, kw_only=True)
class StrategyFacts(Facts):
    """A strategy. ZeRO: arXiv 1910.02054, section 3."""

    divided: tuple[str, ...] = ()
    """Parts of the memory that its processes divide among them."""
    sharded: bool = False
    """Whether torch's FSDP cuts the weights into parts."""


class Strategy(AxisValue):
    """Parallelism of a training; `single` is one process."""

    facts: StrategyFacts

    SINGLE = StrategyFacts("single")
    DDP = StrategyFacts("ddp")
    FSDP = StrategyFacts("fsdp", divided=("optimizer", "gradients", "weights"), sharded=True)
    FSDP_HYBRID = StrategyFacts("fsdp_hybrid", divided=("optimizer", "gradients", "weights"), sharded=True)
    ZERO1 = StrategyFacts("zero1", divided=("optimizer",))
    ZERO2 = StrategyFacts("zero2", divided=("optimizer", "gradients"))
    ZERO3 = StrategyFacts("zero3", divided=("optimizer", "gradients", "weights"))
