"""Pauses on a task that is as wide as its answer: in how many places do two strings agree, one of them shifted?

    python -m benchmarks.latent pause_counts --seed 0 --way 10

A row has `LENGTH` letters a, as many letters b, and a shift k; the answer is the number of places i in which a_i is
b_(i+k), with b as a ring. Only the last tokens know k, so that all comparisons have to be made there: each pause is one
more place to make some of them. Models with 0, 1, 4 and 10 pauses have the same steps and rows, and read as many
pauses when they answer as when they were trained. A model that was trained with pauses also answers without them.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.latent.toys import Task, answer, toy_model, train, with_technique
from trainyard.train.contracts import Encoded

LENGTH, LETTERS = 6, 2
SIZES: dict[str, int] = {"layers": 3, "hidden": 64, "heads": 2}
COUNTS = (0, 1, 4, 10)
STEPS = 3000
FIRST_B, FIRST_SHIFT = 1 + LETTERS, 1 + 2 * LETTERS
FIRST_ANSWER = FIRST_SHIFT + LENGTH
"""Tokens: letters of a, letters of b, shifts, and the numbers from 0 to `LENGTH`."""


def draw(dice: random.Random) -> Encoded:
    first, shift = [dice.randrange(LETTERS) for _ in range(LENGTH)], dice.randrange(LENGTH)
    second = [dice.randrange(LETTERS) for _ in range(LENGTH)]
    return {
        "prompt_ids": [
            *(1 + symbol for symbol in first),
            *(FIRST_B + symbol for symbol in second),
            FIRST_SHIFT + shift,
        ],
        "step_ids": [],
        "step_lengths": [],
        "answer_ids": [FIRST_ANSWER + agreeing(first, second, shift)],
    }


def agreeing(first: list[int], second: list[int], shift: int) -> int:
    return sum(symbol == second[(index + shift) % LENGTH] for index, symbol in enumerate(first))


TASK = Task(draw, vocabulary=FIRST_ANSWER + LENGTH + 1, positions=2 * LENGTH + 2 + max(COUNTS))


WAYS: dict[str, int] = {str(count): count for count in COUNTS}


def measure(seed: int, *, share: float = 1.0, way: str = "0") -> dict[str, Any]:
    """Accuracy with a number of pauses, and of the same model without them."""
    count, model = WAYS[way], toy_model(TASK, seed, **SIZES)
    latent = {"type": "pause", "count": count} if count else None
    if latent is not None:
        with_technique(model, latent, seed)
    loss = train(model, TASK, latent, round(STEPS * share), seed=seed)
    result = {
        "task": f"pause_counts with {way}", "seed": seed, "guess": guess_of(seed), "loss": round(loss, 4),
        "accuracy": answer(model, TASK, seed=seed, max_tokens=1, thoughts=count).accuracy,
    }  # fmt: skip
    if latent is not None:
        result["left_out"] = answer(model, TASK, seed=seed, max_tokens=1, latent=False).accuracy
    return result


def guess_of(seed: int) -> float:
    """Share of the most frequent answer among 4,096 rows."""
    dice = random.Random(f"guess:{seed}")
    answers = [draw(dice)["answer_ids"][0] for _ in range(4096)]
    return max(answers.count(answer) for answer in set(answers)) / len(answers)
