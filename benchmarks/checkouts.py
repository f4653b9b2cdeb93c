"""`python -m benchmarks.checkouts BEFORE AFTER [NAME…]`: is anything slower in one checkout than in another?

Each benchmark's own variant runs in a process of its own with the package of one checkout, in the order ABBA…, so that
drift of the machine affects both alike. Reported is the ratio of work per CPU second, after / before, with the 95 %
interval of a bootstrap over the rounds. Exit code 1 if an interval lies below `LEAST` as a whole.

CPU seconds, not wall time: a busy machine changes them by a few percent, and both checkouts alike.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import SHORT, size

LEAST, ROUNDS, RESAMPLES = 0.97, size(5, 1), 10_000
VARIANTS = {
    "jsonl_to_arrow": "ours",
    "near_duplicates": "ours",
    "document_ledger": "ledger",
    "generator_client": "ours",
    "sft_speed": "native, same batches",  # fp32: two checkouts may understand `precision: auto` differently
    "dpo_speed": "native",
    "cli_start": "check",
}
"""Benchmark -> the variant that runs our code: the first one whose name begins like this. One that both lack is an
error."""
PROBE = """
import json, runpy, sys
from benchmarks import harness
def alternate(variants, **_):
    name = next((name for name in variants if name.startswith(sys.argv[2])), None)
    if name is None:
        raise SystemExit(f"no variant begins with {sys.argv[2]!r}: {list(variants)}")
    variants[name]()  # what is loaded or compiled at the first call is not compared
    print("SAMPLE", json.dumps(harness.measure(variants[name]).per_cpu_second), flush=True)
    raise SystemExit(0)
harness.alternate = alternate
runpy.run_module("benchmarks." + sys.argv[1], run_name="__main__", alter_sys=False)
"""
"""Runs in a checkout: its own harness, with one measured call in the place of all rounds."""


def rate_in(checkout: Path, name: str) -> float:
    """Work per CPU second of a benchmark's variant with the package of `checkout`.

    Raises `RuntimeError` with the end of its error output if the benchmark fails there.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [sys.executable, "-c", PROBE, name, VARIANTS[name]]
    done = subprocess.run(argv, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAMPLE ")]
    if not lines:
        raise RuntimeError(f"{name} in {checkout}: {done.stderr[-600:]}")
    return float(json.loads(lines[-1].removeprefix("SAMPLE ")))


def rounds_of(checkouts: Sequence[Path], measure: Callable[[Path], float], rounds: int = ROUNDS) -> list[list[float]]:
    """Rates of each place, measured in turn forwards and backwards."""
    rates: list[list[float]] = [[] for _ in checkouts]
    for turn in range(rounds):
        for index in range(len(checkouts)) if turn % 2 == 0 else reversed(range(len(checkouts))):
            rates[index].append(measure(checkouts[index]))
    return rates


def interval(before: Sequence[float], after: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Ratio of the medians after / before, and the 95 % interval over resampled rounds."""
    chance = random.Random(seed)

    def resample(rates: Sequence[float]) -> float:
        return statistics.median(chance.choices(rates, k=len(rates)))

    ratios = sorted(resample(after) / resample(before) for _ in range(RESAMPLES))
    return statistics.median(after) / statistics.median(before), ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40]


def main(before: Path, after: Path, names: Sequence[str]) -> int:
    intervals: Mapping[str, tuple[float, float, float]] = {}
    for name in names or list(VARIANTS):
        if not all((checkout / "benchmarks" / f"{name}.py").is_file() for checkout in (before, after)):
            print(f"{name:<20} is not in both checkouts")
            continue
        ratio, low, high = interval(*rounds_of((before, after), lambda checkout, name=name: rate_in(checkout, name)))
        intervals = {**intervals, name: (ratio, low, high)}
        verdict = "slower" if high < LEAST else "ok"
        print(f"{name:<20} {ratio:.3f} [{low:.3f}, {high:.3f}] {verdict}", flush=True)
    if SHORT:
        return 0 if intervals else 1
    return 1 if any(high < LEAST for _, _, high in intervals.values()) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]))
