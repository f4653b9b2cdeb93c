"""Thousands of nights in minutes: the product's own functions on a clock, disks and connections that misbehave.

    outcome = simulate(nights=10_000, seed=1)          the same seed gives the same nights, on any number of processes

A campaign of `DATES` dates is one seed; campaigns are spread over the cores. `inject` names a mistake of
`injected_bugs.py` that is put into the night; then a violation has to be found. `campaign` replays a single one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.errors import NotFound
from trainyard.testing.nights import invariants
from trainyard.testing.nights.campaign import MOST_ATTEMPTS, NightCampaign
from trainyard.testing.nights.injected_bugs import INJECTED_BUGS, injected_bug

DATES, QUIET_DATES = 6, 3
"""Dates with faults, and those without at the end, of one campaign."""
MOST_TOLD = 20


@dataclass(frozen=True)
class SimulationOutcome:
    """What a simulation found."""

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


def campaign_of(seed: int) -> NightCampaign:
    """One campaign, carried out."""
    campaign = NightCampaign(seed)
    for date in range(DATES + QUIET_DATES):
        quiet = campaign.quiet = date >= DATES
        campaign.heal()
        campaign.day() if not quiet else None
        for attempt in range(MOST_ATTEMPTS):
            one_attempt(campaign, quiet or attempt == MOST_ATTEMPTS - 1)
            if campaign.violations or (campaign.reports and campaign.reports[-1].state == "completed"):
                break
        campaign.next_date()
    if not campaign.violations:
        invariants.at_the_end(campaign)
    return campaign


def one_attempt(campaign: NightCampaign, quiet: bool) -> None:
    campaign.heal_connections()
    trouble: set[str] = set()
    if not quiet:
        campaign.faults, trouble = campaign.draw_faults()
    count = len(campaign.reports)
    campaign.attempts += 1
    campaign.night_of(campaign.spawn(), trouble)
    campaign.settle()
    invariants.check(campaign)
    for one in campaign.reports[count:]:
        invariants.report(campaign, one)


def simulate(
    nights: int,
    seed: int = 0,
    *,
    inject: str | None = None,
    processes: int | None = None,
    campaign: int | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
    until_found: bool = False,
) -> SimulationOutcome:
    """Simulate at least so many nights, or one campaign by its seed. With `until_found` it ends at the first campaign
    with a violation.

    Raises `NotFound` (`E-INJECTED-BUG`) for a mistake that does not exist.
    """
    if inject is not None and inject not in INJECTED_BUGS:
        do = f"Name one of {', '.join(INJECTED_BUGS)}."
        raise NotFound(f"There is no injected bug {inject!r}.", do=do, code="E-INJECTED-BUG")
    began = time.monotonic()
    campaigns = range(-(-nights // (DATES + QUIET_DATES)))
    seeds = [seed * 1_000_003 + index for index in campaigns] if campaign is None else [campaign]
    found, failed = list[str](), list[int]()
    done = attempts = checked = 0
    for one, count, looked, wrong in results([(one, inject) for one in seeds], processes):
        done, attempts, checked = done + DATES + QUIET_DATES, attempts + count, checked + looked
        found += wrong
        failed += [one] if wrong else []
        on_progress(done)
        if found and until_found:
            break
    return SimulationOutcome(
        seed, done, attempts, checked, tuple(found), time.monotonic() - began, inject, tuple(failed)
    )


def results(jobs: list[tuple[int, str | None]], processes: int | None) -> Iterator[tuple[int, int, int, list[str]]]:
    """The campaigns' results in the order of their seeds: (seed, attempts, invariants checked, violations)."""
    count = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    if count <= 1:
        yield from map(one_campaign, jobs)
        return
    with multiprocessing.get_context("forkserver").Pool(count) as pool:
        yield from pool.imap(one_campaign, jobs, chunksize=4)


def one_campaign(job: tuple[int, str | None]) -> tuple[int, int, int, list[str]]:
    seed, inject = job
    with injected_bug(inject):
        campaign = campaign_of(seed)
    return seed, campaign.attempts, campaign.checked, campaign.violations[:MOST_TOLD]
