"""Pointer chasing: a random permutation as a table of pairs, a first symbol, and where four hops lead from it.

A token is a whole pair (key, value), so that one hop is one look-up. A model of two layers does not do four hops in one
pass; with the symbols between them in words it does, and COCONUT has to do it with thoughts in their place.

Controls: the answer alone with more steps (no CoT), and thoughts that are a learned vector with the same curriculum
(nothing is fed back).
"""

from __future__ import annotations

import random
from typing import Any

import torch

from benchmarks.latent.toys import PAD, Task, answer, stage_of, toy_model, train, with_technique
from trainyard.train.contracts import Encoded, Head

SYMBOLS, HOPS = 8, 4
COT_STEPS, STAGE_STEPS, CONTROL_STEPS = 300, 100, 1500
COCONUT: dict[str, Any] = {"type": "coconut", "max_stage": HOPS - 1, "epochs_per_stage": 1, "markers": False}
"""Without markers each stage takes 100 steps; with them stage 1 was not learned (docs/dev/log.md)."""


def draw(dice: random.Random) -> Encoded:
    """Tokens 1..8 are the symbols, the others the pairs."""
    values = dice.sample(range(SYMBOLS), SYMBOLS)
    table = [1 + SYMBOLS + key * SYMBOLS + value for key, value in enumerate(values)]
    dice.shuffle(table)
    at = start = dice.randrange(SYMBOLS)
    path = [at := values[at] for _ in range(HOPS)]
    return {
        "prompt_ids": [*table, 1 + start],
        "step_ids": [1 + symbol for symbol in path[:-1]],
        "step_lengths": [1] * (HOPS - 1),
        "answer_ids": [1 + path[-1]],
    }


TASK = Task(draw, vocabulary=1 + SYMBOLS + SYMBOLS * SYMBOLS, positions=32)


def train_coconut(
    model: Any, seed: int, *, feedback: bool = True, share: float = 1.0, last_steps: int = 0
) -> list[float]:
    """Steps in words first, then one more thought at each stage; returns the last losses of the stages."""
    latent = {**COCONUT, "feedback": feedback}
    with_technique(model, latent, seed)
    counts = [COT_STEPS, *[STAGE_STEPS] * (HOPS - 2), STAGE_STEPS + last_steps]
    return [
        train(model, TASK, latent, round(count * share), seed=seed, epoch=epoch) for epoch, count in enumerate(counts)
    ]


def compare(seed: int, *, share: float = 1.0, controls: bool = True) -> dict[str, Any]:
    """Accuracy of each way with a share of the steps, and what an answer takes."""
    result: dict[str, Any] = {"task": "pointers", "seed": seed}
    model = toy_model(TASK, seed)
    losses = train_coconut(model, seed, share=share)
    thoughts = answer(model, TASK, seed=seed, max_tokens=1, thoughts=HOPS - 1)
    result["coconut"] = thoughts.accuracy
    result["coconut_tokens"], result["coconut_losses"] = thoughts.tokens, [round(loss, 4) for loss in losses]
    if not controls:
        return result
    cot_model = toy_model(TASK, seed)
    train(cot_model, TASK, None, round(COT_STEPS * share), seed=seed, steps_in_words=True)
    by_words = answer(cot_model, TASK, seed=seed, max_tokens=HOPS)
    result["cot"], result["cot_tokens"] = by_words.accuracy, by_words.tokens
    direct = toy_model(TASK, seed)
    train(direct, TASK, None, round(CONTROL_STEPS * share), seed=seed)
    result["no_cot"] = answer(direct, TASK, seed=seed, max_tokens=1).accuracy
    pauses = toy_model(TASK, seed)
    total = COT_STEPS + (HOPS - 1) * STAGE_STEPS
    train_coconut(pauses, seed, feedback=False, share=share, last_steps=CONTROL_STEPS - total)
    result["not_fed_back"] = answer(pauses, TASK, seed=seed, max_tokens=1).accuracy
    return result


CODI: dict[str, Any] = {"type": "codi", "thoughts": HOPS - 1}
CODI_STEPS = 1000


def teach_thoughts(seed: int, *, share: float = 1.0, distance_weight: float = 1.0) -> dict[str, Any]:
    """CODI from a model that can do it in words: accuracies of both, and the distance before and after."""
    latent = {**CODI, "distance_weight": distance_weight}
    model = toy_model(TASK, seed)
    train(model, TASK, None, round(COT_STEPS * share), seed=seed, steps_in_words=True)
    with_technique(model, latent, seed)
    first = means(model, latent, seed)
    train(model, TASK, latent, round(CODI_STEPS * share), seed=seed)
    last = means(model, latent, seed)
    thoughts = answer(model, TASK, seed=seed, max_tokens=1, thoughts=HOPS - 1)
    cot_evaluation = answer(model, TASK, seed=seed, max_tokens=HOPS, latent=False)
    return {
        "task": f"pointers by codi, distance_weight {distance_weight:g}", "seed": seed, "codi": thoughts.accuracy,
        "in_words": cot_evaluation.accuracy, "before": first, "after": last,
    }  # fmt: skip


def means(model: Any, latent: dict[str, Any], seed: int) -> dict[str, float]:
    """The parts of the loss over held-out rows."""
    stage, dice = stage_of(latent)[0], random.Random(f"evaluate:{seed}")
    batch = stage.collate([draw(dice) for _ in range(256)], PAD)
    with torch.no_grad():
        scores = stage.score(model, batch, Head.FULL)
    return {name.removesuffix("_B"): round(float(value.mean()), 4) for name, value in scores.items()}


WAYS: dict[str, Any] = {
    "coconut": compare,
    "codi": teach_thoughts,
    "codi_apart": lambda seed, share: teach_thoughts(seed, share=share, distance_weight=0.0),
}


def measure(seed: int, *, share: float = 1.0, way: str = "coconut") -> dict[str, Any]:
    result: dict[str, Any] = WAYS[way](seed, share=share)
    return result
