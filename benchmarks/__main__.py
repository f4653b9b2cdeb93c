"""`python -m benchmarks [NAME…]`: run every benchmark file, or the named ones, each in its own process.

Exit code: 1 if a bar was missed, else 3 if one was inconclusive, else 0.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
NOT_BENCHMARKS = {"__init__", "__main__", "bars", "checkouts", "harness", "trainers"}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main(wanted: list[str]) -> int:
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
        for name in wanted or names()
    ]
    missed = [code for code in codes if code not in (0, 3)]
    return 1 if missed else 3 if 3 in codes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
