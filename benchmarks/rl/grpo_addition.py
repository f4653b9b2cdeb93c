"""Does GRPO with a verifier teach a small model to add numbers of two digits, where imitation left it half-way?

    python -m benchmarks.rl grpo_addition [--seed 0] [--share 1.0]

A model of 0.6 million weights reads `a b + c d =` by its digits and writes the sum, the last digit first. It imitates
until it is exact on at most 0.3 of the problems; from there on it learns from exact_match alone. Measured is the exact
match of greedy answers on held-out problems before and after.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch.nn import functional

from benchmarks.rl.toy import Toy, rounded, toy_config, toy_policy, toy_tokenizer, toy_trainer
from trainyard.spec.axes.rewards import ExactMatchReward
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Sampling
from trainyard.train.model.sampling import sample
from trainyard.train.rl.rewards import RewardPanel

WORDS = ["pad", "end", "+", "=", *map(str, range(10))]
TOKENIZER = toy_tokenizer(WORDS)
DIGIT = {str(digit): 4 + digit for digit in range(10)}
LONGEST = 4
"""Three digits and the end."""
STEPS, RATE = 1500, 3e-4
SHAPE = {"hidden": 128, "layers": 3, "context": 32}


def problems(seed: int, held_out: int = 500) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """All pairs of numbers of two digits: those that are trained on, and those that are asked at the end."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(seed).shuffle(pairs)
    return pairs[held_out:], pairs[:held_out]


def question(pair: tuple[int, int]) -> list[int]:
    return [*(DIGIT[digit] for digit in str(pair[0])), 2, *(DIGIT[digit] for digit in str(pair[1])), 3]


def answer(pair: tuple[int, int]) -> list[int]:
    """The sum, the last digit first, and the end."""
    return [*(DIGIT[digit] for digit in reversed(str(sum(pair)))), 1]


def exact(model: Any, pairs: Sequence[tuple[int, int]]) -> float:
    """Share of problems whose greedy answer is the sum."""
    model.eval()
    with torch.no_grad():
        completions = sample(model, TOKENIZER, [question(pair) for pair in pairs], Sampling(LONGEST, temperature=0))
    return sum(completion.ids == answer(pair) for completion, pair in zip(completions, pairs, strict=True)) / len(pairs)


def imitate(model: Any, pairs: Sequence[tuple[int, int]], seed: int, *, until: float = 0.2, most: int = 4000) -> float:
    """Cross-entropy on answers until the model is exact on `until` of some problems; returns that share."""
    dice, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(most):
        rows = [question(pair) + answer(pair) for pair in dice.sample(pairs, 128)]
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        labels_BT = ids_BT.masked_fill(ids_BT == 0, -100)
        labels_BT[:, :6] = -100
        model.train()
        logits_BTV = model(input_ids=ids_BT, attention_mask=(ids_BT != 0).long()).logits
        functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19 and (share := exact(model, pairs[:200])) >= until:
            return share
    return share


def measure(seed: int, *, share: float = 1.0) -> dict[str, Any]:
    """Imitate, then GRPO: exact match of greedy answers on held-out problems."""
    trained, held_out = problems(seed)
    model = toy_policy(toy_config(len(WORDS), **SHAPE), seed)
    began, steps = time.process_time(), round(STEPS * share)
    imitate(model, trained, seed)
    before = exact(model, held_out)
    stage = Stage.GRPO.settings(
        rewards=[{"type": "exact_match"}], num_generations=16, max_completion_length=LONGEST, temperature=1.0,
        beta=0.0, loss="dapo",
    )  # fmt: skip
    config = toy_trainer(stage, max_steps=steps, batch_size=256, learning_rate=RATE, seed=seed)
    prompts = [{"input_ids": question(pair), "answer": written(pair), "question": ""} for pair in trained]
    rewards = Toy(config, model, TOKENIZER, prompts, RewardPanel((ExactMatchReward(),))).run().curve("reward")
    result = {
        "sft": before,
        "grpo": exact(model, held_out),
        "first_reward": rewards[0],
        "last_reward": fmean(rewards[-10:]),
    }
    cpu_s = round(time.process_time() - began, 1)
    return {"task": "grpo_addition", "seed": seed, "steps": steps, **rounded(result), "cpu_s": cpu_s}


def written(pair: tuple[int, int]) -> str:
    """The answer as the tokenizer writes it."""
    return str(TOKENIZER.decode(answer(pair), skip_special_tokens=True))
