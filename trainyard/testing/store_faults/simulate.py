"""Simulate faults over the stores: `python -m trainyard.testing.store_faults.simulate --campaigns 2000`.

Prints each violation with its campaign's seed and the line that replays it. Exit code 1 when something was violated.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from trainyard.testing.store_faults.campaign import campaign_of
from trainyard.testing.store_faults.injected_bugs import INJECTED_BUGS, injected_bug


@dataclass(frozen=True)
class StoreOutcome:
    """What the campaigns showed."""

    campaigns: int
    checked: int
    violations: tuple[str, ...]
    failed: tuple[int, ...]
    """Seeds of the campaigns with a violation."""


def simulate(campaigns: int, seed: int = 0, *, inject: str | None = None, until_found: bool = False) -> StoreOutcome:
    """Carry out so many campaigns; with `until_found` end at the first violation."""
    checked, violations, failed = 0, list[str](), list[int]()
    done = 0
    with injected_bug(inject):
        for one in range(seed * 1_000_003, seed * 1_000_003 + campaigns):
            campaign = campaign_of(one)
            done, checked = done + 1, checked + campaign.checked
            violations += campaign.violations
            failed += [one] if campaign.violations else []
            if failed and until_found:
                break
    return StoreOutcome(done, checked, tuple(violations), tuple(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", type=int, help="replay the one that has this seed")
    parser.add_argument("--inject", choices=INJECTED_BUGS)
    given = parser.parse_args()
    began = time.monotonic()
    if given.campaign is not None:
        with injected_bug(given.inject):
            one = campaign_of(given.campaign)
        found = StoreOutcome(1, one.checked, tuple(one.violations), (one.seed,) if one.violations else ())
    else:
        found = simulate(given.campaigns, given.seed, inject=given.inject)
    inject = f" --inject {given.inject}" if given.inject else ""
    for seed in found.failed:
        print(*(line for line in found.violations if line.startswith(f"seed {seed}: ")), sep="\n")
        print(f"  replay: python -m trainyard.testing.store_faults.simulate --campaign {seed}{inject}")
    print(f"{found.campaigns:,} campaigns in {time.monotonic() - began:.0f} s")
    print(f"{found.checked:,} invariants checked, {len(found.violations):,} violated")
    return 1 if found.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
