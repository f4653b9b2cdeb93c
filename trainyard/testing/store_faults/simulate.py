"""Simulate faults over the stores: `python -m trainyard.testing.store_faults.simulate --campaigns 2000`.

Prints each violation with its campaign's seed and the line that replays it. Exit code 1 when something was violated.
"""

from __future__ import annotations

import argparse

from trainyard.testing.simulation import Simulator, violation_lines
from trainyard.testing.store_faults.campaign import run_campaign
from trainyard.testing.store_faults.injected_bugs import INJECTED_BUGS, build_swaps

simulate = Simulator(run_campaign, build_swaps).run
REPLAY = "python -m trainyard.testing.store_faults.simulate"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--campaign", type=int, help="replay the one that has this seed")
    parser.add_argument("--inject", choices=INJECTED_BUGS)
    options = parser.parse_args()
    outcome = simulate(options.campaigns, options.seed, inject=options.inject, campaign=options.campaign)
    print(*violation_lines(outcome.violations, outcome.failed, REPLAY, outcome.inject), sep="\n")
    print(f"{outcome.nights:,} campaigns in {outcome.seconds:.0f} s")
    print(outcome.last_line)
    return outcome.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
