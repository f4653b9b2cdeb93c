"""Schedules of the learning rate. `train/schedules` computes them."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.axes.axis import AxisValue


@dataclass(frozen=True, kw_only=True)
class ScheduleFacts:
    """One schedule."""

    constant: bool = False
    """Whether the rate stays at its peak after the warmup."""
    by_step: bool = True
    """Whether the step alone gives the rate; otherwise a metric does."""


class Schedule(AxisValue):
    """How the learning rate changes over the steps."""

    facts: ScheduleFacts

    LINEAR = "linear", ScheduleFacts()
    COSINE = "cosine", ScheduleFacts()
    CONSTANT = "constant", ScheduleFacts(constant=True)
    CONSTANT_WITH_WARMUP = "constant_with_warmup", ScheduleFacts(constant=True)
    COSINE_WITH_RESTARTS = "cosine_with_restarts", ScheduleFacts()
    POLYNOMIAL = "polynomial", ScheduleFacts()
    REDUCE_ON_PLATEAU = "reduce_on_plateau", ScheduleFacts(by_step=False)
    WSD = "wsd", ScheduleFacts()
    INVERSE_SQRT = "inverse_sqrt", ScheduleFacts()
    ONE_CYCLE = "one_cycle", ScheduleFacts()
