"""Methods: which weights are trainable, and what a training leaves. `train/methods` chooses the weights."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """One method."""

    adapter: bool = True
    """Whether it leaves an adapter next to an unchanged base; the others write a whole model."""
    low_rank: bool = True
    """Whether that adapter has a rank."""
    summed: bool = True
    """Whether it is a plain sum of low-rank matrices, so that two can be written as one."""
    quantised: bool = False
    """Whether the base is in 4 or 8 bits."""


WHOLE = MethodFacts(adapter=False, low_rank=False, summed=False)


class Method(AxisValue):
    """Which weights are trainable."""

    facts: MethodFacts

    FULL = "full", WHOLE
    LORA = "lora", MethodFacts()
    QLORA = "qlora", MethodFacts(quantised=True)
    DORA = "dora", MethodFacts(summed=False)
    LORA_PLUS = "lora_plus", MethodFacts()
    OFT = "oft", MethodFacts(low_rank=False, summed=False)
    FREEZE = "freeze", WHOLE


ADAPTER_METHODS = frozenset(method for method in Method if method.facts.adapter)
