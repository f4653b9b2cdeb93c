"""COCONUT learns to chase pointers with thoughts in place of words (three quarters of a minute of one core)."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.latent.graphs import FIRST_EDGE, NODES, make
from benchmarks.latent.multiplication import END, EQUALS, PLUS, TIMES, product_row, task_of
from benchmarks.latent.pointers import COCONUT, HOPS, SYMBOLS, TASK, compare
from benchmarks.latent.toys import answer, toy_model, train


def test_a_row_of_the_task_is_what_it_says() -> None:
    row = TASK.draw(random.Random(1))
    table, start = row["prompt_ids"][:-1], row["prompt_ids"][-1] - 1
    pairs = dict(divmod(token - 1 - SYMBOLS, SYMBOLS) for token in table)
    path = [start := pairs[start] for _ in range(HOPS)]
    assert [1 + symbol for symbol in path] == [*row["step_ids"], *row["answer_ids"]]
    assert sorted(pairs) == sorted(pairs.values()) == list(range(SYMBOLS))


def test_a_product_has_its_partial_products_and_their_sum() -> None:
    row = product_row(12, 34, 2)
    assert row["prompt_ids"] == [3, 2, TIMES, 5, 4, EQUALS]
    assert row["step_ids"] == [9, 5, 1, PLUS, 1, 7, 4, 1]  # 12 x 4 = 048 and 12 x 30 = 0360, the lowest digit first
    assert row["answer_ids"] == [EQUALS, 9, 1, 5, 1, END]  # 0408


def test_products_that_are_asked_are_never_trained() -> None:
    task, dice = task_of(2), random.Random(0)
    assert task.held_out is not None
    held_out_prompts = {tuple(task.held_out(dice)["prompt_ids"]) for _ in range(4000)}
    trained = {tuple(task.draw(dice)["prompt_ids"]) for _ in range(4000)}
    assert held_out_prompts.isdisjoint(trained)
    assert 900 <= len(held_out_prompts) <= 1000


def test_the_path_of_a_graph_leads_to_its_answer() -> None:
    row, depth = make(random.Random(3))
    edges = [divmod(token - FIRST_EDGE, NODES) for token in row["prompt_ids"] if token >= FIRST_EDGE]
    *_, first, other, root = row["prompt_ids"]
    path = [root, *row["step_ids"][::5]]
    assert all((start - 1, end - 1) in edges for start, end in itertools.pairwise(path))
    assert row["answer_ids"][-1] == path[-1]
    assert {path[-1]} == {first, other} & {1 + node for node in depth}
    assert depth[path[-1] - 1] == len(path) - 1 == len(row["step_lengths"])


def test_an_untrained_model_guesses() -> None:
    assert answer(toy_model(TASK, 0), TASK, seed=0, max_tokens=1, count=256).accuracy < 0.3


def test_some_steps_lower_the_loss() -> None:
    model = toy_model(TASK, 0)
    first = train(model, TASK, None, 1, seed=0, steps_in_words=True)
    assert train(model, TASK, None, 20, seed=0, steps_in_words=True) < first


@pytest.mark.slow
def test_thoughts_take_the_place_of_words() -> None:
    accuracies = compare(0, controls=False)
    assert COCONUT["max_stage"] == HOPS - 1
    assert accuracies["coconut"] >= 0.95
    assert accuracies["coconut_tokens"] == HOPS
