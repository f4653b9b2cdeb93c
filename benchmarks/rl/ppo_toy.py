"""Does PPO reach the best reward of a toy, and does the divergence from its start stay bounded?

    python -m benchmarks.rl.ppo_toy [--seeds 3] [--updates 200]

A random model with a vocabulary of 8 writes 8 tokens; its reward is the share of token 3. An even draw has 1/8.
Measured is the mean reward of the last ten rollouts, with three kinds of advantage, and with a kl_coef of 10, which has
to keep the reward near its start.
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean
from typing import Any

import torch

from benchmarks.rl.toy import (
    FunctionScorer,
    Recorder,
    Toy,
    toy_config,
    toy_critic,
    toy_policy,
    toy_tokenizer,
    toy_trainer,
)
from trainyard.spec.axes.rewards import ModelReward
from trainyard.spec.axes.stages import Stage
from trainyard.train.rollouts.rewards import RewardPanel, SampledCompletion

VOCABULARY, LENGTH, WANTED = 8, 8, 3
WORDS = ["pad", "end", *(f"w{at}" for at in range(2, VOCABULARY))]


def share_of_wanted(completion: SampledCompletion) -> float:
    """Token 3 among all tokens that could have been written."""
    return completion.ids[-completion.tokens :].count(WANTED) / LENGTH


def train_toy(seed: int, *, updates: int = 200, **settings: Any) -> Recorder:
    """PPO with 32 completions a rollout, used twice."""
    given = {
        "advantage": "gae", "num_generations": 4, "temperature": 1.0, "max_completion_length": LENGTH,
        "num_iterations": 2, "minibatches": 2, "kl_coef": 0.01, "critic_learning_rate": 3e-3,
        "rewards": [{"type": "reward_model"}], **settings,
    }  # fmt: skip
    stage = Stage.PPO.settings(**given)
    config = toy_trainer(stage, max_steps=updates, batch_size=16, learning_rate=3e-3, seed=seed)
    shape = toy_config(VOCABULARY)
    critic = toy_critic(shape, seed + 1) if given["advantage"] != "group" else None
    panel = RewardPanel((ModelReward(),), {"reward_model": FunctionScorer(share_of_wanted)})
    prompts = [{"input_ids": [2 + at % 6], "answer": "", "question": ""} for at in range(24)]
    return Toy(config, toy_policy(shape, seed), toy_tokenizer(WORDS), prompts, panel, critic).run()


def measure(seed: int, updates: int, **settings: Any) -> dict[str, float]:
    found = train_toy(seed, updates=updates, **settings)
    rewards, kl = found.curve("reward"), found.curve("kl")
    return {"first": rewards[0], "last": fmean(rewards[-40:]), "kl": fmean(kl[-40:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=200)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    variants: dict[str, dict[str, Any]] = {
        "gae": {}, "group": {"advantage": "group"}, "gae_group": {"advantage": "gae_group"},
        "gae, kl_coef 10": {"kl_coef": 10.0},
    }  # fmt: skip
    for name, settings in variants.items():
        for seed in range(asked.seeds):
            print(json.dumps({"variant": name, "seed": seed, **measure(seed, asked.updates, **settings)}), flush=True)


if __name__ == "__main__":
    main()
