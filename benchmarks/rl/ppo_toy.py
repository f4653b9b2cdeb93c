"""Does PPO reach the best reward of a toy, and does the divergence from its start stay bounded?

    python -m benchmarks.rl ppo_toy [--seed 0] [--share 1.0]

A random model with a vocabulary of 8 writes 8 tokens; its reward is the share of token 3. An even draw has 1/8.
Measured is the mean reward of the last ten rollouts, with three kinds of advantage, and with a kl_coef of 10, which has
to keep the reward near its start.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.rl.toy import (
    FunctionScorer,
    Recorder,
    Toy,
    rounded,
    toy_config,
    toy_critic,
    toy_policy,
    toy_tokenizer,
    toy_trainer,
)
from trainyard.spec.axes.rewards import ModelReward
from trainyard.spec.axes.stages import Stage
from trainyard.train.rl.rewards import RewardPanel, SampledCompletion

VOCABULARY, LENGTH, WANTED = 8, 8, 3
UPDATES, LAST, STEPS_PER_ROLLOUT = 200, 10, 4
WORDS = ["pad", "end", *(f"w{at}" for at in range(2, VOCABULARY))]


def share_of_wanted(completion: SampledCompletion) -> float:
    """Token 3 among all tokens that could have been written."""
    return completion.ids[-completion.tokens :].count(WANTED) / LENGTH


def train_toy(seed: int, *, updates: int = UPDATES, **settings: Any) -> Recorder:
    """Train the toy; returns what its steps report."""
    return toy_of(seed, updates=updates, **settings).run()


def toy_of(seed: int, *, updates: int, **settings: Any) -> Toy:
    """PPO with 32 completions a rollout, used twice."""
    stage_settings = {
        "advantage": "gae", "num_generations": 4, "temperature": 1.0, "max_completion_length": LENGTH,
        "num_iterations": 2, "minibatches": 2, "kl_coef": 0.01, "critic_learning_rate": 3e-3,
        "rewards": [{"type": "reward_model"}], **settings,
    }  # fmt: skip
    stage = Stage.PPO.settings(**stage_settings)
    config = toy_trainer(stage, max_steps=updates, batch_size=16, learning_rate=3e-3, seed=seed)
    shape = toy_config(VOCABULARY)
    critic = toy_critic(shape, seed + 1) if stage_settings["advantage"] != "group" else None
    panel = RewardPanel((ModelReward(),), {"reward_model": FunctionScorer(share_of_wanted)})
    prompts = [{"input_ids": [2 + at % 6], "answer": "", "question": ""} for at in range(24)]
    return Toy(config, toy_policy(shape, seed), toy_tokenizer(WORDS), prompts, panel, critic)


VARIANTS: dict[str, dict[str, Any]] = {
    "gae": {}, "group": {"advantage": "group"}, "gae_group": {"advantage": "gae_group"}, "gae_kl_10": {"kl_coef": 10.0},
}  # fmt: skip


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """Mean reward of the first rollout and of the last ten, and the divergence in nats a token, of each variant."""
    updates, result = round(UPDATES * share), {}
    for name, settings in VARIANTS.items():
        recorder = train_toy(seed, updates=updates, **settings)
        rewards, kl = recorder.curve("reward"), recorder.curve("kl")
        last = LAST * STEPS_PER_ROLLOUT
        result |= {f"{name}_first": rewards[0], name: fmean(rewards[-last:]), f"{name}_kl": fmean(kl[-last:])}
    return {"task": "ppo_toy", "seed": seed, "updates": updates, **rounded(result)}
