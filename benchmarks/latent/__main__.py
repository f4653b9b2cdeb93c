"""python -m benchmarks.latent TASK [--seed 0] [--share 1.0] [--way coconut] [--width 2], or `all` with the bars."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

TASKS: dict[str, tuple[str, ...]] = {
    "dsa_recall": (),
    "quiet_star_hops": (),
    "pointers": ("way",),
    "multiplication": ("way", "width"),
    "graphs": ("way",),
    "pause_counts": ("way",),
    "dsa_decode": (),
}
"""Task -> its own options."""
RUNS = (
    *(("pointers", "--seed", str(seed)) for seed in range(3)),
    ("pointers", "--way", "codi"),
    ("multiplication", "--way", "stepwise"),
    ("multiplication", "--way", "direct"),
    *(("dsa_recall", "--seed", str(seed)) for seed in range(3)),
    *(("quiet_star_hops", "--seed", str(seed)) for seed in range(3)),
    *(("pause_counts", "--way", count) for count in ("0", "1", "4", "10")),
    ("dsa_decode",),
    *(("graphs", "--way", way) for way in ("coconut", "no_cot", "not_fed_back", "cot")),
)
Results = dict[str, list[dict[str, Any]]]


def accuracy(found: Results, task: str) -> float:
    return median(found, task, "accuracy")


def median(found: Results, task: str, name: str) -> float:
    values = sorted(one[name] for one in found[task])
    return float(values[len(values) // 2])


BARS: dict[str, Callable[[Results], bool]] = {
    "COCONUT chases pointers (0.95)": lambda found: median(found, "pointers", "coconut") >= 0.95,
    "no CoT does not (0.6)": lambda found: median(found, "pointers", "no_cot") <= 0.6,
    "thoughts that are not fed back do not (0.6)": lambda found: median(found, "pointers", "not_fed_back") <= 0.6,
    "COCONUT searches graphs, 15 points above the answer alone": lambda found: (
        accuracy(found, "graphs by coconut") >= accuracy(found, "graphs by no_cot") + 0.15
    ),
    "with a third of the tokens of words": lambda found: (
        median(found, "graphs by coconut", "tokens") <= median(found, "graphs by cot", "tokens") / 3
    ),
    "stepwise internalisation multiplies numbers of two digits (0.95)": lambda found: (
        accuracy(found, "multiplication 2 x 2 by stepwise") >= 0.95
    ),
    "selected tokens recall (0.95)": lambda found: median(found, "dsa_recall", "sparse") >= 0.95,
    "random tokens and a window do not (0.4)": lambda found: (
        max(median(found, "dsa_recall", name) for name in ("random", "window")) <= 0.4
    ),
    "an answer after 32,768 tokens reads them faster (2)": lambda found: (
        found["dsa_decode"][0]["32768"]["attention_ratio"] >= 2
    ),
    "all tokens are dense attention (1e-6)": lambda found: median(found, "dsa_recall", "all_tokens") <= 1e-6,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*TASKS, "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the optimizer steps")
    parser.add_argument("--way", default=None, help="one of WAYS of the task; default: its first")
    parser.add_argument("--width", type=int, default=2, help="digits of a factor (multiplication)")
    asked = parser.parse_args()
    if asked.task == "all":
        return measure_all()
    torch.set_num_threads(1)
    started = time.monotonic()
    module = importlib.import_module(f"benchmarks.latent.{asked.task}")
    own = {name: getattr(asked, name) for name in TASKS[asked.task]}
    if "way" in own:
        own["way"] = own["way"] or next(iter(module.WAYS))
    found = module.measure(asked.seed, share=asked.share, **own)
    print(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}), flush=True)
    return 0


def measure_all() -> int:
    """Run each in a process of its own; 1 if a bar is missed."""
    found: Results = {}
    for run in RUNS:
        command = [sys.executable, "-m", "benchmarks.latent", *run]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(line, end="", flush=True)
        one = json.loads(line)
        found.setdefault(one["task"], []).append(one)
    met = {name: bar(found) for name, bar in BARS.items()}
    for name, is_met in met.items():
        print(f"{'met' if is_met else 'MISSED'}  {name}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
