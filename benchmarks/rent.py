"""Do rentals keep their limits when the service, the clock or the renter fails? Seeded runs against a double.

    python -m benchmarks.rent --seeds 200 --service dstack

Each run rents an H100 within limits of price, duration, money and idle time, and suffers up to two of ten faults. It is
broken if there was a second order, a machine is left, or a limit was passed by more than one poll (30 s).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness import size
from trainyard.testing.rental_campaign import DOUBLES, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=size(200, 8))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--service", choices=DOUBLES, default="prime")
    options = parser.parse_args()
    started, broken, counts, machines, usd = time.monotonic(), 0, Counter[str](), 0, 0.0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_seed(seed, Path(folder), options.service)
        counts.update(outcome.faults)
        machines, usd = machines + outcome.machines, usd + outcome.usd
        if outcome.broken:
            broken += 1
            print(f"seed {seed} ({', '.join(outcome.faults)}): {'; '.join(outcome.broken)}")
    print(f"faults: {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}")
    print(
        f"{options.seeds} runs, {machines} machines, {usd:.2f} USD, {broken} broken, {time.monotonic() - started:.0f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
