"""COCONUT learns to chase pointers with thoughts in place of words (three quarters of a minute of one core)."""

from __future__ import annotations

import random

import pytest

from benchmarks.latent.pointers import COCONUT, HOPS, SYMBOLS, TASK, compare
from benchmarks.latent.toys import answer, toy_model, train


def test_a_row_of_the_task_is_what_it_says() -> None:
    row = TASK.draw(random.Random(1))
    table, start = row["prompt_ids"][:-1], row["prompt_ids"][-1] - 1
    pairs = dict(divmod(token - 1 - SYMBOLS, SYMBOLS) for token in table)
    path = [start := pairs[start] for _ in range(HOPS)]
    assert [1 + symbol for symbol in path] == [*row["step_ids"], *row["answer_ids"]]
    assert sorted(pairs) == sorted(pairs.values()) == list(range(SYMBOLS))


def test_an_untrained_model_guesses() -> None:
    assert answer(toy_model(TASK, 0), TASK, seed=0, max_tokens=1, count=256).accuracy < 0.3


def test_some_steps_lower_the_loss() -> None:
    model = toy_model(TASK, 0)
    first = train(model, TASK, None, 1, seed=0, steps_in_words=True)
    assert train(model, TASK, None, 20, seed=0, steps_in_words=True) < first


@pytest.mark.slow
def test_thoughts_take_the_place_of_words() -> None:
    found = compare(0, controls=False)
    assert COCONUT["max_stage"] == HOPS - 1
    assert found["coconut"] >= 0.95
    assert found["coconut_tokens"] == HOPS
