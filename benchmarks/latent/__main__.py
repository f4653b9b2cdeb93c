"""python -m benchmarks.latent TASK [--seed 0] [--share 1.0] [--way coconut] [--width 2]"""

from __future__ import annotations

import argparse
import importlib
import json
import time

import torch

TASKS = {
    "dsa_recall": (),
    "quiet_star_hops": (),
    "pointers": (),
    "multiplication": ("width", "way"),
    "graphs": ("way",),
}
"""Task -> its own options."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the optimizer steps")
    parser.add_argument("--width", type=int, default=2, help="digits of a factor (multiplication)")
    parser.add_argument(
        "--way",
        default="coconut",
        help="coconut, not_fed_back, cot or no_cot (graphs); stepwise or direct (multiplication)",
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    measure = importlib.import_module(f"benchmarks.latent.{asked.task}").measure
    own = {name: getattr(asked, name) for name in TASKS[asked.task]}
    found = measure(asked.seed, share=asked.share, **own)
    print(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}), flush=True)


if __name__ == "__main__":
    main()
