"""Benchmarks of several runs, each in a process of its own, and the bars that their results are compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

Results = dict[str, list[dict[str, Any]]]
"""Task -> what each of its runs printed."""
Bar = Callable[[Results], bool]


def median(results: Results, task: str, name: str) -> float:
    values = sorted(run[name] for run in results[task])
    return float(values[len(values) // 2])


def measure_one(module: str, run: Sequence[str]) -> dict[str, Any]:
    """Return what `python -m module ARGUMENTS` prints: one line of JSON."""
    line = subprocess.run([sys.executable, "-m", module, *run], check=True, stdout=subprocess.PIPE, text=True).stdout
    print(line, end="", flush=True)
    result: dict[str, Any] = json.loads(line)
    return result


def measure_all(
    module: str,
    runs: Sequence[Sequence[str]],
    bars: Mapping[str, Bar],
    alone: Container[str] = (),
    jobs: int | None = None,
) -> int:
    """Run `python -m module ARGUMENTS` for each run, one for each core at once; 1 if a bar is missed.

    A run uses one thread, so what it learns does not depend on its neighbours. The tasks of `alone` compare times:
    they run after the others, one by one.
    """
    results: Results = {}
    together = [run for run in runs if run[0] not in alone]
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        try:
            for done in as_completed([pool.submit(measure_one, module, run) for run in together]):
                results.setdefault(done.result()["task"], []).append(done.result())
        finally:
            pool.shutdown(cancel_futures=True)  # after a run that failed no further one begins
    for result in (measure_one(module, run) for run in runs if run[0] in alone):
        results.setdefault(result["task"], []).append(result)
    met = {name: bar(results) for name, bar in bars.items()}
    for name, is_met in met.items():
        print(f"{'met' if is_met else 'MISSED'}  {name}")
    return 0 if all(met.values()) else 1
