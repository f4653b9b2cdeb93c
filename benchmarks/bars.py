"""Benchmarks of several runs, each in a process of its own, and the bars that their results are compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Results = dict[str, list[dict[str, Any]]]
"""Task -> what each of its runs printed."""
Bar = Callable[[Results], bool]


def median(found: Results, task: str, name: str) -> float:
    values = sorted(one[name] for one in found[task])
    return float(values[len(values) // 2])


def measure_all(module: str, runs: Iterable[Sequence[str]], bars: Mapping[str, Bar]) -> int:
    """Run `python -m module ARGUMENTS` for each run; 1 if a bar is missed."""
    found: Results = {}
    for run in runs:
        command = [sys.executable, "-m", module, *run]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(line, end="", flush=True)
        one = json.loads(line)
        found.setdefault(one["task"], []).append(one)
    met = {name: bar(found) for name, bar in bars.items()}
    for name, is_met in met.items():
        print(f"{'met' if is_met else 'MISSED'}  {name}")
    return 0 if all(met.values()) else 1
