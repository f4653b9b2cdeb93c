"""How many documents fit a budget: said before the run, corrected after twenty, and kept while it runs.

Before the run only the profile's seconds for one document alone are known; requests in flight share a server, so the
first guess is `budget * slots / seconds`. After `LEARNT_FROM` documents the measured rate decides. Admission stops when
the slow tail (95 of 100 documents) would no longer end in time: what is left waits for the next night.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

LEARNT_FROM = 20
"""Documents after which the measured rate replaces the profile's."""
KEPT = 500
"""Latencies that the tail is read from."""


@dataclass
class Planner:
    """One phase's plan. All times are of one monotonic clock, in seconds."""

    started: float
    deadline: float
    slots: int
    seconds_per_document: float
    done: int = 0
    failed: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    first_predicted: int = 0
    learnt_predicted: int | None = None

    def predict(self, waiting: int) -> int:
        """Documents that will be done by the deadline, of `waiting` ones."""
        self.first_predicted = min(waiting, self.within(self.deadline - self.started))
        return self.first_predicted

    def within(self, seconds: float) -> int:
        return max(0, math.floor(max(0.0, seconds) * self.slots / self.seconds_per_document))

    def note(self, now: float, latency_s: float, waiting: int) -> None:
        """A document is done; after the twentieth the prediction is made anew from what was measured."""
        self.done += 1
        self.latencies.append(latency_s)
        if self.done == LEARNT_FROM:
            rate = self.rate(now)
            more = math.floor(rate * max(0.0, self.deadline - now - self.mean()))
            self.learnt_predicted = self.done + min(waiting, more)

    def rate(self, now: float) -> float:
        """Documents a second so far, all slots together.

        The first answers come one latency after the start: by Little's law the slots over the mean latency say what a
        full pipeline does, without that beginning.
        """
        spent = now - self.started
        steady = self.slots / self.mean() if self.mean() > 0 else math.inf
        return min(steady, self.done / spent if spent > 2 * self.mean() else steady)

    def mean(self) -> float:
        return sum(self.latencies) / len(self.latencies) if self.latencies else self.seconds_per_document

    def tail(self) -> float:
        """Seconds within which 95 of 100 documents end."""
        if len(self.latencies) < LEARNT_FROM:
            return max([self.seconds_per_document, *self.latencies])
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]

    def admits(self, now: float) -> bool:
        """Whether a document that begins now is likely to end in time."""
        return now + self.tail() <= self.deadline
