"""When an evaluation counts as an improvement, which step is the best, and when a training ends."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from trainyard.spec.axes.stages import EvalMetric
from trainyard.spec.estimate.timing import MOST_ROUNDS, default_interval
from trainyard.spec.training import EvalSettings
from trainyard.train.checkpoint.checkpoints import list_best
from trainyard.train.evaluation import cut_before_answer
from trainyard.train.history import Evaluations

NOT = -100


def make_evaluations(losses: list[float], **settings: Any) -> Evaluations:
    evaluations, eval_settings = Evaluations(), EvalSettings(**settings)
    for index, loss in enumerate(losses):
        evaluations.add(10 * (index + 1), {"loss": loss}, eval_settings)
    return evaluations


@pytest.mark.parametrize(
    ("losses", "settings", "ended"),
    [
        ([3, 2, 1], {"patience": 1}, False),
        ([3, 2, 2.5], {"patience": 1}, True),
        ([3, 2, 2], {"patience": 1}, True),
        ([3, 2, 2.5], {"patience": 2}, False),
        ([3, 2, 2.5, 1.9, 2.5], {"patience": 2}, False),
        ([3, 2.95, 2.92], {"patience": 2, "min_delta": 0.1}, True),
        ([3, 2.95, 2.85], {"patience": 2, "min_delta": 0.1}, False),
        ([3, math.nan, math.inf], {"patience": 2}, True),
        ([3, 4, 5, 6, 7], {}, False),
    ],
)
def test_patience(losses: list[float], settings: dict[str, Any], ended: bool) -> None:
    assert make_evaluations(losses, **settings).ended is ended


def test_the_best_step_is_the_earliest_of_equals_and_never_one_without_a_number() -> None:
    evaluations = make_evaluations([math.nan, 2, 1, 1, 3])
    assert evaluations.rank_steps(EvalMetric.LOSS) == [30, 40, 20, 50]
    assert evaluations.best_step(EvalMetric.LOSS) == 30
    assert evaluations.value_at(10, EvalMetric.LOSS) is None
    assert evaluations.value_at(20, EvalMetric.LOSS) == 2
    assert evaluations.at(11) is None
    assert make_evaluations([]).best_step(EvalMetric.LOSS) is None


def test_more_is_better_for_an_accuracy() -> None:
    evaluations, eval_settings = Evaluations(), EvalSettings(metric=EvalMetric.REWARD_ACCURACY, patience=1)
    for step, accuracy in enumerate([0.5, 0.75]):
        evaluations.add(step, {"reward_accuracy": accuracy}, eval_settings)
    assert (evaluations.best_step(eval_settings.metric), evaluations.ended) == (1, False)
    assert list_best({1: 0.5, 2: 0.9, 3: 0.9}, max) == [2, 3, 1]


def test_the_state_is_stored_whole() -> None:
    evaluations = make_evaluations([3, 2, 2.5], patience=3)
    assert Evaluations(**asdict(evaluations)) == evaluations


@pytest.mark.parametrize(
    ("steps", "trained", "held_out", "every"),
    [
        (188, 3000, 50, 47),  # 4 % of 3,000 rows are 240 evaluated ones
        (3000, 48_000, 200, 158),
        (300_000, 4_800_000, 200, 15_000),
        (10, 40, 2, 10),
    ],
)
def test_evaluations_are_as_many_as_the_time_allows(steps: int, trained: int, held_out: int, every: int) -> None:
    assert default_interval(steps, trained, held_out) == every
    assert math.ceil(steps / every) <= MOST_ROUNDS


def test_a_prompt_is_what_comes_before_the_last_answer() -> None:
    chat = {"input_ids": [1, 2, 3, 4, 5, 6, 7], "labels": [NOT, NOT, 3, NOT, NOT, 6, 7]}
    assert cut_before_answer(chat) == [1, 2, 3, 4, 5]
    text = {"input_ids": [1, 2, 3, 4], "labels": [NOT, 2, 3, 4]}
    assert cut_before_answer(text) == [1, 2]
