"""python -m benchmarks.rl TASK [--seed 0] [--share 1.0], or `all` with the bars."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time

import torch

from benchmarks.bars import Bar, Results, measure_all, median

SEEDS = {"identities": 3, "ppo_toy": 3, "rlhf": 3, "grpo_addition": 1, "calculator": 1, "rollout_speed": 1}
"""Task -> how many seeds `all` runs; medians are compared with the bars."""
RUNS = [(task, "--seed", str(seed)) for task, seeds in SEEDS.items() for seed in range(seeds)]


def worst(results: Results, task: str, name: str) -> float:
    return max(float(run[name]) for run in results[task])


BARS: dict[str, Bar] = {
    "the first ratio is 1 (1e-4)": lambda results: worst(results, "identities", "ratio") < 1e-4,
    "advantages are those of brute force (1e-9)": lambda results: worst(results, "identities", "gae") < 1e-9,
    **{
        f"PPO with {name} reaches 0.8 of the best reward in 200 updates, at most 3 nats a token away": (
            lambda results, name=name: (
                median(results, "ppo_toy", name) > 0.8 and median(results, "ppo_toy", f"{name}_kl") < 3
            )
        )
        for name in ("gae", "group", "gae_group")
    },
    "kl_coef 10 keeps the reward near its start (0.1)": lambda results: (
        abs(median(results, "ppo_toy", "gae_kl_10") - median(results, "ppo_toy", "gae_kl_10_first")) < 0.1
    ),
    "RLHF raises the hidden utility over SFT": lambda results: (
        median(results, "rlhf", "kl_0.3_utility") > median(results, "rlhf", "sft_utility") + 0.3
    ),
    "without the KL term the score rises more, the utility less": lambda results: (
        median(results, "rlhf", "kl_0_score") > median(results, "rlhf", "kl_0.3_score")
        and median(results, "rlhf", "kl_0_utility") < median(results, "rlhf", "kl_0.3_utility")
        and median(results, "rlhf", "kl_0_nats") > median(results, "rlhf", "kl_0.3_nats")
    ),
    "GRPO adds (0.9, from at most 0.3)": lambda results: (
        median(results, "grpo_addition", "sft") <= 0.3 and median(results, "grpo_addition", "grpo") >= 0.9
    ),
    "GRPO uses the calculator (0.8, from at most 0.3)": lambda results: (
        median(results, "calculator", "sft") <= 0.3 and median(results, "calculator", "grpo") >= 0.8
    ),
    "rollouts are faster than generate (1.1 each, 1.3 on average)": lambda results: (
        median(results, "rollout_speed", "least") >= 1.1 and median(results, "rollout_speed", "geometric_mean") >= 1.3
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*SEEDS, "all"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the optimizer steps, or of the rounds")
    parser.add_argument("--jobs", type=int, default=None, help="runs at once of `all`; default: one for each core")
    args = parser.parse_args()
    if args.task == "all":
        return measure_all("benchmarks.rl", RUNS, BARS, alone=("rollout_speed",), jobs=args.jobs)
    torch.set_num_threads(1)
    started = time.monotonic()
    result = importlib.import_module(f"benchmarks.rl.{args.task}").measure(args.seed, share=args.share)
    took = {"seconds": round(time.monotonic() - started, 1), "cpu_seconds": round(time.process_time(), 1)}
    print(json.dumps({**result, **took}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
