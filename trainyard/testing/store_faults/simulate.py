"""Simulate faults over the stores: `python -m trainyard.testing.store_faults.simulate --campaigns 2000`.

Prints each violation with its campaign's seed and the line that replays it. Exit code 1 when something was violated.
"""

from __future__ import annotations

import argparse

from trainyard.testing.simulation import Simulator, violation_lines
from trainyard.testing.store_faults.campaign import campaign_of
from trainyard.testing.store_faults.injected_bugs import INJECTED_BUGS, table

simulate = Simulator(campaign_of, table).run
REPLAY = "python -m trainyard.testing.store_faults.simulate"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", type=int, help="replay the one that has this seed")
    parser.add_argument("--inject", choices=INJECTED_BUGS)
    given = parser.parse_args()
    found = simulate(given.campaigns, given.seed, inject=given.inject, campaign=given.campaign)
    print(*violation_lines(found.violations, found.failed, REPLAY, found.inject), sep="\n")
    print(f"{found.nights:,} campaigns in {found.seconds:.0f} s")
    print(found.last_line)
    return found.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
