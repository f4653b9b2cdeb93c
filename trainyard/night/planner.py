"""Planning of how many documents fit a budget: reported before the run, corrected after twenty, and kept while it runs.

Before the run only the profile's seconds for one document alone are known; requests in flight share a server, so the
first guess is `budget * slots / seconds`. After `LEARNT_FROM` documents (or two rounds of all slots, if that is more)
the measured rate decides. Admission stops when the slow tail (95 of 100 documents) would no longer end in time: what is
left waits for the next night.

The rate is the slope of a line through the ends of the documents so far. Documents by the time would be too few (the
first answers come one latency after the start), slots over the mean latency too many (of those that began together the
short ones end first, and requests in flight beyond the server's own slots wait for each other); the slope has neither
error. In 150 runs each of servers with 1 to 32 slots and uneven documents (0.4 to 1.6 times the mean) 19 of 20
predictions are within 15 % of what was done; `benchmarks/planner.py` measures it over HTTP.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

LEARNT_FROM = 20
"""Documents after which the measured rate replaces the profile's."""
ROUNDS = 2
"""Least number of documents per slot: the first of a round say nothing about the long ones that run next to them."""
KEPT = 500
"""Latencies that the tail is read from."""


@dataclass
class Planner:
    """A phase's plan. All times are of one monotonic clock, in seconds."""

    started: float
    deadline: float
    slots: int
    seconds_per_document: float
    done: int = 0
    failed: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """When the last documents were done."""
    first_predicted: int = 0
    learnt_predicted: int | None = None

    def predict(self, waiting: int) -> int:
        """Documents that will be done by the deadline, of `waiting` ones."""
        self.first_predicted = min(waiting, self.within(self.deadline - self.started))
        return self.first_predicted

    def within(self, seconds: float) -> int:
        return max(0, math.floor(max(0.0, seconds) * self.slots / self.seconds_per_document))

    @property
    def learns_at(self) -> int:
        """Number of documents after which it predicts again."""
        return max(LEARNT_FROM, ROUNDS * self.slots)

    def note(self, now: float, latency_s: float, waiting: int) -> None:
        """A document is done, `waiting` are not (in flight or not yet asked); at `learns_at` it predicts again."""
        self.done += 1
        self.latencies.append(latency_s)
        self.ends.append(now)
        if self.done == self.learns_at:
            # Admission ends one tail before the deadline, and what is in flight then is done too.
            more = self.rate() * max(0.0, self.deadline - now - self.tail()) + self.slots
            self.learnt_predicted = self.done + min(waiting, math.floor(more))

    def rate(self) -> float:
        """Documents a second that end, all slots together: never more than the slots over the mean latency (Little)."""
        steady = self.slots / self.mean() if self.mean() > 0 else math.inf
        middle = sum(self.ends) / len(self.ends) if self.ends else 0.0
        spread = sum((end - middle) ** 2 for end in self.ends)
        rise = sum(number * (end - middle) for number, end in enumerate(self.ends))
        return min(steady, rise / spread) if spread > 0 else steady

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
