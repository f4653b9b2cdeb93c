"""`python -m benchmarks [--short] [NAME…]`: run every benchmark file, or the named ones, each in its own process.

`--short` takes small sizes and one round, and has no bars on times: it shows that the benchmarks run.

Exit code: 1 if a bar was missed, else 3 if one was inconclusive, else 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
NOT_BENCHMARKS = {"__init__", "__main__", "bars", "checkouts", "echo_service", "harness", "trainers"}
SHORT_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "distill": ("--steps", "2", "--seeds", "1"),
    "fanout": ("one process", "dask"),
    "job_index": ("--jobs", "200"),
    "jsonl_to_arrow": ("--quick",),
    "live_streams": ("--streams", "5", "--seconds", "0.5"),
    "metric_levels": ("--steps", "5000"),
    "pairs_by_rule": ("sample", str(FOLDER.parent / "tests" / "resources"), "--per-source", "2"),
    "plan_time": ("sft lora",),
}
"""Benchmark -> the arguments of its short form."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_BENCHMARKS)


def main(arguments: Sequence[str]) -> int:
    short = "--short" in arguments
    selection = [name for name in arguments if name != "--short"]
    unknown = sorted(set(selection) - set(names()))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    environment = {**os.environ, "TRAINYARD_BENCHMARKS_SHORT": "1"} if short else None
    codes = []
    for name in selection or names():
        argv = [sys.executable, "-m", f"benchmarks.{name}", *(SHORT_ARGUMENTS.get(name, ()) if short else ())]
        codes.append(subprocess.run(argv, env=environment, check=False).returncode)
    missed = [code for code in codes if code not in (0, 3)]
    return 1 if missed else 3 if 3 in codes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
