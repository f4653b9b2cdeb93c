"""Schedules of the learning rate. `spec/rates` computes them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue, Facts


@dataclass(frozen=True, kw_only=True)
class ScheduleFacts(Facts):
    """A schedule."""

    constant: bool = False
    """Whether the rate stays at its peak after the warmup."""
    by_step: bool = True
    """Whether the step alone gives the rate; otherwise a metric does."""
    warms_up: bool = True
    """Whether the rate rises in the steps of a warm-up."""
    least_steps: int = 1
    """Steps below which a run would have another curve: no decay, no restart, no window to compare with."""


class Schedule(AxisValue):
    """Learning-rate schedule: how the rate changes over the steps."""

    facts: ScheduleFacts

    LINEAR = ScheduleFacts("linear")
    COSINE = ScheduleFacts("cosine")
    CONSTANT = ScheduleFacts("constant", constant=True, warms_up=False)
    CONSTANT_WITH_WARMUP = ScheduleFacts("constant_with_warmup", constant=True)
    COSINE_WITH_RESTARTS = ScheduleFacts("cosine_with_restarts", least_steps=4)
    POLYNOMIAL = ScheduleFacts("polynomial")
    REDUCE_ON_PLATEAU = ScheduleFacts("reduce_on_plateau", by_step=False, warms_up=False, least_steps=13)
    WSD = ScheduleFacts("wsd", least_steps=20)
    INVERSE_SQRT = ScheduleFacts("inverse_sqrt")
    ONE_CYCLE = ScheduleFacts("one_cycle", least_steps=3)
