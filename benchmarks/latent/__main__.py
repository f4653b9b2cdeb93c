"""python -m benchmarks.latent TASK [--seed 0] [--share 1.0] [--way coconut] [--width 2], or `all` with the bars."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time

import torch

from benchmarks.bars import Bar, Results, measure_all, median

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
    *(("graphs", "--way", way) for way in ("coconut", "no_cot", "not_fed_back", "cot")),
    ("multiplication", "--way", "stepwise"),
    ("multiplication", "--way", "direct"),
    ("multiplication", "--way", "stepwise", "--width", "3", "--share", "0.5"),
    *(("pause_counts", "--way", count, "--share", "0.5") for count in ("0", "1", "4", "10")),
    *(("dsa_recall", "--seed", str(seed)) for seed in range(3)),
    *(("quiet_star_hops", "--seed", str(seed)) for seed in range(3)),
    *(("pointers", "--seed", str(seed)) for seed in range(3)),
    *(("pointers", "--way", way, "--seed", str(seed)) for way in ("codi", "codi_apart") for seed in range(3)),
    ("dsa_decode",),
)


def accuracy(results: Results, task: str) -> float:
    return median(results, task, "accuracy")


BARS: dict[str, Bar] = {
    "COCONUT chases pointers (0.95)": lambda results: median(results, "pointers", "coconut") >= 0.95,
    "no CoT does not (0.6)": lambda results: median(results, "pointers", "no_cot") <= 0.6,
    "thoughts that are not fed back do not (0.6)": lambda results: median(results, "pointers", "not_fed_back") <= 0.6,
    "COCONUT searches graphs, 15 points above the answer alone": lambda results: (
        accuracy(results, "graphs by coconut") >= accuracy(results, "graphs by no_cot") + 0.15
    ),
    "with a third of the tokens of words": lambda results: (
        median(results, "graphs by coconut", "tokens") <= median(results, "graphs by cot", "tokens") / 3
    ),
    "stepwise internalisation multiplies numbers of two digits (0.95)": lambda results: (
        accuracy(results, "multiplication 2 x 2 by stepwise") >= 0.95
    ),
    "and direct training with as many steps does so less often": lambda results: (
        accuracy(results, "multiplication 2 x 2 by stepwise") > accuracy(results, "multiplication 2 x 2 by direct")
    ),
    "selected tokens recall (0.95)": lambda results: median(results, "dsa_recall", "sparse") >= 0.95,
    "random tokens and a window do not (0.4)": lambda results: (
        max(median(results, "dsa_recall", name) for name in ("random", "window")) <= 0.4
    ),
    "an answer after 32,768 tokens reads them faster (2)": lambda results: (
        results["dsa_decode"][0]["32768"]["attention_ratio"] >= 2
    ),
    "all tokens are dense attention (1e-6)": lambda results: median(results, "dsa_recall", "all_tokens") <= 1e-6,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*TASKS, "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the optimizer steps")
    parser.add_argument("--way", default=None, help="one of WAYS of the task; default: its first")
    parser.add_argument("--width", type=int, default=2, help="digits of a factor (multiplication)")
    parser.add_argument("--jobs", type=int, default=None, help="runs at once of `all`; default: one for each core")
    args = parser.parse_args()
    if args.task == "all":
        return measure_all("benchmarks.latent", RUNS, BARS, alone=("dsa_decode",), jobs=args.jobs)
    torch.set_num_threads(1)
    started = time.monotonic()
    module = importlib.import_module(f"benchmarks.latent.{args.task}")
    options = {name: getattr(args, name) for name in TASKS[args.task]}
    if "way" in options:
        options["way"] = options["way"] or next(iter(module.WAYS))
    result = module.measure(args.seed, share=args.share, **options)
    took = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(time.process_time(), 1)}
    print(json.dumps({**result, **took}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
