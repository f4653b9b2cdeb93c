"""Products of two numbers with the lowest digit first: stepwise internalisation against direct training.

    2 1 * 4 3 =    8 4 0 + 0 6 3 0 =    8 0 4 0       12 x 34: the partial products, and their sum

A tenth of all pairs is held out. Direct training has the same number of optimizer steps and sees the answer alone.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.latent.toys import Learning, Task, answer, toy_model, train, with_technique
from trainyard.train.contracts import Encoded

TIMES, EQUALS, PLUS, END = 11, 12, 13, 14
"""Tokens 1 to 10 are the digits."""
HELD_OUT_OF = 10
SIZES: dict[str, int] = {"layers": 3, "hidden": 128, "heads": 4}
WORD_STEPS, REMOVAL_STEPS, LAST_STEPS = 2000, 800, 3000
LEARNING = Learning(weight_decay=0.3, betas=(0.9, 0.98), warmup_steps=50)
"""There are 9,000 products of two digits to learn from, which a small model knows by heart after some epochs: with a
weight decay of 0.01 the loss falls to 0.0001, and 0.87 of the held-out products are right."""


def digits(number: int, width: int) -> list[int]:
    """Tokens of a number, the lowest digit first."""
    return [1 + number // 10**position % 10 for position in range(width)]


def product_row(first: int, second: int, width: int) -> Encoded:
    steps: list[int] = []
    for position in range(width):
        steps += [PLUS] * bool(position)
        steps += digits(first * (second // 10**position % 10) * 10**position, width + 1 + position)
    return {
        "prompt_ids": [*digits(first, width), TIMES, *digits(second, width), EQUALS],
        "step_ids": steps,
        "step_lengths": [len(steps)],
        "answer_ids": [EQUALS, *digits(first * second, 2 * width), END],
    }


def task_of(width: int) -> Task:
    def draw(dice: random.Random, *, held_out: bool = False) -> Encoded:
        while True:
            first, second = dice.randrange(10**width), dice.randrange(10**width)
            if ((first * 7919 + second * 104729) % HELD_OUT_OF == 0) is held_out:
                return product_row(first, second, width)

    def draw_held_out(dice: random.Random) -> Encoded:
        return draw(dice, held_out=True)

    return Task(draw, vocabulary=15, positions=64, end_id=END, held_out=draw_held_out, learning=LEARNING)


def counts_of(task: Task, share: float) -> list[int]:
    """Optimizer steps of each epoch of the curriculum."""
    reasoning = len(task.draw(random.Random(0))["step_ids"])
    return [round(share * count) for count in (WORD_STEPS, *[REMOVAL_STEPS] * (reasoning - 1), LAST_STEPS)]


def stepwise(task: Task, seed: int, counts: list[int]) -> tuple[Any, list[float]]:
    latent = {"type": "hidden_cot", "tokens_per_epoch": 1, "whole_epochs": 1, "most_tokens": len(counts) - 1}
    model = toy_model(task, seed, **SIZES)
    with_technique(model, latent, seed)
    last = len(counts) - 1
    return model, [
        train(model, task, latent, count, seed=seed, epoch=epoch, falls=epoch == last)
        for epoch, count in enumerate(counts)
    ]


def direct(task: Task, seed: int, counts: list[int]) -> tuple[Any, list[float]]:
    model = toy_model(task, seed, **SIZES)
    return model, [train(model, task, None, sum(counts), seed=seed, falls=True)]


WAYS = {"stepwise": stepwise, "direct": direct}


def measure(seed: int, *, share: float = 1.0, width: int = 2, way: str = "stepwise") -> dict[str, Any]:
    task = task_of(width)
    counts = counts_of(task, share)
    model, losses = WAYS[way](task, seed, counts)
    evaluation = answer(model, task, seed=seed, max_tokens=2 * width + 2)
    return {
        "task": f"multiplication {width} x {width} by {way}", "seed": seed, "optimizer_steps": sum(counts),
        "accuracy": evaluation.accuracy, "tokens": evaluation.tokens, "losses": [round(loss, 4) for loss in losses],
    }  # fmt: skip
