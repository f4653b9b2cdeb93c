"""Campaigns of injected faults: carried out by their seeds, spread over the cores, and added up.

    simulate = Simulator(run_campaign, build_swaps, nights=9).run
    outcome = simulate(10_000, seed=1)        the same seed gives the same campaigns, on any number of processes

A simulator has a table of injected bugs: names of mistakes, and the wrong functions that are put in the place of right
ones for a while. With one of them in place a violation has to be found.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from trainyard.errors import NotFound

MAX_SHOWN = 20
CAMPAIGNS_SHOWN = 20
Swap = tuple[Any, str, Any]
"""(object, attribute, its value while the bug is injected)."""
CampaignResult = tuple[int, int, int, list[str]]
"""(seed, attempts, invariants checked, violations)."""


class Campaign(Protocol):
    """Protocol of a finished campaign."""

    violations: list[str]
    checked: int
    attempts: int


@dataclass(frozen=True)
class SimulationOutcome:
    """Result of a simulation."""

    seed: int
    nights: int
    attempts: int
    checked: int
    violations: tuple[str, ...]
    """Each begins with `seed N: `, where N is its campaign's seed."""
    seconds: float
    inject: str | None = None
    failed: tuple[int, ...] = ()
    """The seeds of the campaigns with a violation."""

    @property
    def exit_code(self) -> int:
        return 1 if self.violations else 0

    @property
    def last_line(self) -> str:
        return f"{self.checked:,} invariants checked, {len(self.violations):,} violated"


@dataclass(frozen=True)
class Simulator:
    """Campaigns of one kind, and the bugs that can be injected into what they exercise."""

    campaign_of: Callable[[int], Campaign]
    bugs: Callable[[], Mapping[str, Sequence[Swap]]]
    nights: int = 1
    """How many nights one campaign has; 1 where it has none."""

    def run(
        self,
        nights: int,
        seed: int = 0,
        *,
        inject: str | None = None,
        processes: int | None = None,
        campaign: int | None = None,
        on_progress: Callable[[int], None] = lambda _done: None,
        until_found: bool = False,
    ) -> SimulationOutcome:
        """Simulate at least so many nights, or one campaign by its seed. With `until_found` it ends at the first
        campaign with a violation.

        Raises `NotFound` (`E-INJECTED-BUG`) for a mistake that does not exist.
        """
        if inject is not None and inject not in self.bugs():
            do = f"Name one of {', '.join(self.bugs())}."
            raise NotFound(f"There is no injected bug {inject!r}.", do=do, code="E-INJECTED-BUG")
        began = time.monotonic()
        campaigns = range(-(-nights // self.nights))
        seeds = [seed * 1_000_003 + index for index in campaigns] if campaign is None else [campaign]
        violations, failed = list[str](), list[int]()
        done = attempts = checked = 0
        for campaign_seed, count, looked, wrong in self.results(seeds, inject, processes):
            done, attempts, checked = done + self.nights, attempts + count, checked + looked
            violations += wrong
            failed += [campaign_seed] if wrong else []
            on_progress(done)
            if violations and until_found:
                break
        seconds = round(time.monotonic() - began, 1)
        return SimulationOutcome(seed, done, attempts, checked, tuple(violations), seconds, inject, tuple(failed))

    def results(self, seeds: Sequence[int], inject: str | None, processes: int | None) -> Iterator[CampaignResult]:
        """Yield the campaigns' results in the order of their seeds."""
        count = min(processes or len(os.sched_getaffinity(0)), len(seeds))
        if count <= 1:
            yield from map(partial(self.result, inject), seeds)
            return
        with multiprocessing.get_context("forkserver").Pool(count) as pool:
            yield from pool.imap(partial(self.result, inject), seeds, chunksize=4)

    def result(self, inject: str | None, seed: int) -> CampaignResult:
        with apply_swaps(self.bugs()[inject] if inject else ()):
            campaign = self.campaign_of(seed)
        return seed, campaign.attempts, campaign.checked, campaign.violations[:MAX_SHOWN]


def violation_lines(violations: Sequence[str], failed: Sequence[int], replay: str, inject: str | None) -> Iterator[str]:
    """Yield the violations of each campaign, and the command that carries out this campaign alone."""
    for seed in failed[:CAMPAIGNS_SHOWN]:
        yield from (line for line in violations if line.startswith(f"seed {seed}: "))
        yield f"  replay: {replay} --campaign {seed}{f' --inject {inject}' if inject else ''}"
    if len(failed) > CAMPAIGNS_SHOWN:
        yield f"{len(failed) - CAMPAIGNS_SHOWN:,} more campaigns with violations; --json lists all of them"


def always(value: object = None) -> Callable[..., object]:
    """Return a function that gives one value whatever it is asked: the plainest of mistakes."""
    return lambda *_arguments, **_more: value


@contextmanager
def apply_swaps(swaps: Sequence[Swap]) -> Iterator[None]:
    """Set each attribute to its other value; the old values come back at the end."""
    originals = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in swaps]
    for where, attribute, other in swaps:
        setattr(where, attribute, other)
    try:
        yield
    finally:
        for where, attribute, original in originals:
            setattr(where, attribute, original)
