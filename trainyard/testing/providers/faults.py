"""What goes wrong at a provider: chosen by a seed, or by name."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum


class CreateFault(StrEnum):
    """What happens to a request that creates a job."""

    NONE = "none"
    STORED_THEN_500 = "stored, then 500"
    STORED_THEN_LOST = "stored, then the connection breaks"
    REFUSED_503 = "503, nothing stored"
    REFUSED_429 = "429, nothing stored"


@dataclass
class Faults:
    """Faults of one job's life."""

    creates: list[CreateFault] = field(default_factory=list)
    """Of the first requests that create a job; later ones succeed."""
    trouble: float = 0.0
    """Share of the other requests that are answered by 429 or 503, or whose connection breaks."""
    unknown_word: str = ""
    """A state that no client knows, between two that it knows."""
    missing_reads: int = 0
    """Reads of a job that are answered by 404 although it exists."""
    list_lag: int = 0
    """Lists that do not show a new job yet."""
    events: int = 3
    ends: str = "done"
    """done or failed."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @classmethod
    def choose(cls, seed: int) -> Faults:
        """Return the faults of a seed; every hundredth job has 10,000 events."""
        chosen = random.Random(seed)
        return cls(
            creates=[chosen.choice(list(CreateFault)) for _ in range(chosen.choice((0, 1, 1, 2)))],
            trouble=chosen.choice((0.0, 0.05, 0.15)),
            unknown_word=chosen.choice(("", "", "REBALANCING")),
            missing_reads=chosen.choice((0, 0, 1, 3)),
            list_lag=chosen.choice((0, 0, 1, 2)),
            events=10_000 if seed % 100 == 7 else chosen.choice((0, 3, 40)),
            seed=seed,
        )

    def next_create(self) -> CreateFault:
        return self.creates.pop(0) if self.creates else CreateFault.NONE

    def next_trouble(self) -> int | None:
        """Return the status of a request that fails now, 0 for a broken connection; None for none."""
        return self.random.choice((429, 503, 0)) if self.random.random() < self.trouble else None
