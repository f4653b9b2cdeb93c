"""Strategies: how a distributed training is shared. `train/parallel` and the backends' launchers implement them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """One strategy. ZeRO: arXiv 1910.02054, section 3."""

    divided: tuple[str, ...] = ()
    """Parts of the memory that its processes divide among them."""
    sharded: bool = False
    """Whether torch's FSDP cuts the weights into parts."""


SHARDED = StrategyFacts(divided=("optimizer", "gradients", "weights"), sharded=True)


class Strategy(AxisValue):
    """How the processes of a training share it; `single` is one process."""

    facts: StrategyFacts

    SINGLE = "single", StrategyFacts()
    DDP = "ddp", StrategyFacts()
    FSDP = "fsdp", SHARDED
    FSDP_HYBRID = "fsdp_hybrid", SHARDED
    ZERO1 = "zero1", StrategyFacts(divided=("optimizer",))
    ZERO2 = "zero2", StrategyFacts(divided=("optimizer", "gradients"))
    ZERO3 = "zero3", StrategyFacts(divided=("optimizer", "gradients", "weights"))
