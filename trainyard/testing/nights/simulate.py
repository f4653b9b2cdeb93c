"""Thousands of nights in minutes: the product's own functions on a clock, disks and connections that misbehave.

    outcome = simulate(nights=10_000, seed=1)          the same seed gives the same nights, on any number of processes

A campaign of `DATES` dates is one seed; campaigns are spread over the cores. `inject` names a mistake of
`injected_bugs.py` that is put into the night; then a violation has to be found. `campaign` replays a single one.
"""

from __future__ import annotations

from trainyard.testing.nights import invariants
from trainyard.testing.nights.campaign import MOST_ATTEMPTS, NightCampaign
from trainyard.testing.nights.injected_bugs import build_swaps
from trainyard.testing.simulation import Simulator

DATES, QUIET_DATES = 6, 3
"""Dates with faults, and those without at the end, of one campaign."""


def run_campaign(seed: int) -> NightCampaign:
    """Return one campaign, carried out."""
    campaign = NightCampaign(seed)
    for date in range(DATES + QUIET_DATES):
        quiet = campaign.quiet = date >= DATES
        campaign.heal()
        campaign.day() if not quiet else None
        for attempt in range(MOST_ATTEMPTS):
            run_attempt(campaign, quiet or attempt == MOST_ATTEMPTS - 1)
            if campaign.violations or (campaign.reports and campaign.reports[-1].state == "completed"):
                break
        campaign.next_date()
    if not campaign.violations:
        invariants.check_end(campaign)
    return campaign


def run_attempt(campaign: NightCampaign, quiet: bool) -> None:
    campaign.heal_connections()
    trouble: set[str] = set()
    if not quiet:
        campaign.faults, trouble = campaign.draw_faults()
    count = len(campaign.reports)
    campaign.attempts += 1
    campaign.run_night(campaign.spawn(), trouble)
    campaign.settle()
    invariants.check(campaign)
    for report in campaign.reports[count:]:
        invariants.report(campaign, report)


simulate = Simulator(run_campaign, build_swaps, DATES + QUIET_DATES).run
