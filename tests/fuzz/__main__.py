"""`python -m tests.fuzz --target readers --minutes 10 --seed 7 [--planted "cubic pattern"] [--replay NUMBER]`.

Exit code: 0 without a finding, 1 with one; with `--planted` the other way round.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.planted import PLANTED
from tests.fuzz.runner import fuzz, replay
from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted", choices=sorted(PLANTED), default="")
    parser.add_argument("--replay", type=int, metavar="NUMBER", help="run this input alone, without limits")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        for line in replay(options.target, options.seed, options.replay):
            print(line)
        return 0
    report = fuzz(
        options.target, seconds=60 * options.minutes, seed=options.seed, planted=options.planted,
        until_found=bool(options.planted),
    )  # fmt: skip
    print(report.line())
    for finding, first in report.findings.items():
        print(f"  {finding}\n    replay: --target {options.target} --seed {first['seed']} --replay {first['number']}")
    return int(bool(report.findings) != bool(options.planted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
