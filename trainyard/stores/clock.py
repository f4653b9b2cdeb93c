"""Time as an object that can be handed in: tests and simulated nights move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds of the wall clock, which may jump; for what people read and what another machine compares."""

    def monotonic(self) -> float:
        """Seconds that never go back, the same for all processes of one boot; for durations and leases."""

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
