from __future__ import annotations

import math
import random

import pytest

from trainyard.train.divergence import Divergence, DivergenceWatch, judge_training

FALLING = [(step, 5.2 * math.exp(-step / 40) + 0.5) for step in range(1, 61)]


def kinds(divergences: list[Divergence]) -> list[str]:
    return [divergence.kind.value for divergence in divergences]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (FALLING, []),
        ([(step, 5.16 + 0.07 * step) for step in range(1, 21)], ["loss_rose"]),
        ([(1, 5.265), (2, 30.0), (3, 80.0), (4, 109.0), (5, 104.0), (6, 109.2)], ["loss_rose", "near_limit"]),
        ([(1, 5.2), (2, 443.0), *((step, 8.3 + step % 2 / 10) for step in range(3, 21))], ["loss_rose", "near_limit"]),
        ([(1, 5.2), (2, 443.0), *((step, 1.1) for step in range(3, 21))], ["near_limit"]),
        ([(1, 2.0)], []),
        ([(step, 0.693 + step % 3 / 1000) for step in range(1, 61)], ["not_learned"]),
        ([(step, 0.693 + step % 3 / 1000) for step in range(1, 19)], []),
        ([(1, 0.002), *((step, 0.01) for step in range(2, 21))], []),
    ],
)
def test_a_finished_training_is_judged_by_its_curve(losses: list[tuple[int, float]], expected: list[str]) -> None:
    assert kinds(judge_training(losses, [])) == expected


@pytest.mark.parametrize("seed", range(200))
def test_the_noise_of_single_rows_is_no_divergence(seed: int) -> None:
    numbers = random.Random(seed)
    losses = [(step, numbers.gauss(2.0, 0.3)) for step in range(1, 61)]
    assert set(kinds(judge_training(losses, []))) <= {"not_learned"}


NORMS = [1.0, 1.2, 0.9, 1.1, 1.0, 0.8]


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([*NORMS, 90.0, 1.0], ""),
        ([*NORMS, 130.0, 1.0], "the norm of the gradient rose to 130 at step 7; the median before it is 1"),
        ([*NORMS, 130.0, 500.0, 200.0], "the norm of the gradient rose to 500 at step 8; the median before it is 1"),
        ([*NORMS, math.nan], "the norm of the gradient is not finite at step 7; the median before it is 1"),
        ([*NORMS, math.inf, 1.0], "the norm of the gradient is not finite at step 7; the median before it is 1"),
        ([1.0, 900.0, *NORMS], ""),
        ([math.nan] * 8, ""),
        ([0.0] * 6 + [0.5], ""),
    ],
)
def test_a_jump_of_the_gradient_is_told_with_what_was_usual(norms: list[float], expected: str) -> None:
    steps = dict(enumerate(norms, 1))
    divergences = judge_training(FALLING, [], norms=steps)
    assert [divergence.because for divergence in divergences] == [expected] * bool(expected)
    watch = DivergenceWatch()
    reports = [
        (step, divergence) for step, norm in steps.items() for divergence in watch.on_step(step, 2.0, None, norm)
    ]
    assert [divergence.kind.value for _, divergence in reports] == ["gradient_jump"] * bool(expected)
    assert all(
        step in (7, 8) and "lower hyperparameters.learning_rate" in divergence.text for step, divergence in reports
    )


def test_overfitting_is_told_with_the_best_step_and_what_to_do() -> None:
    held_out = [{"step": step, "loss": 1.8 + abs(step - 20) / 50} for step in range(10, 61, 10)]
    (overfitting,) = judge_training(FALLING, held_out)
    means = [sum(loss for _, loss in FALLING[end - 10 : end]) / 10 for end in (20, 60)]
    assert overfitting.text == (
        "overfitting: the held-out loss rose from 1.800 at step 20 to 2.600 at step 60, while the training loss fell "
        f"from {means[0]:.3f} to {means[1]:.3f}: "
        "take the best step by eval.load_best, end there by eval.patience, or train fewer epochs"
    )
    (stopped,) = judge_training(FALLING, held_out, takes_best=True)
    assert stopped.advice == "the result has the weights of that step; fewer epochs are enough"
    assert (
        judge_training(
            FALLING, [{"step": evaluation["step"], "loss": 3.0 - evaluation["step"] / 60} for evaluation in held_out]
        )
        == []
    )


def test_a_kind_is_told_once_while_it_lasts() -> None:
    watch = DivergenceWatch()
    curve = [1.0, *[2.0] * 20, *[0.9] * 20, *[2.0] * 20]
    reports = [(step, kinds(new)) for step, loss in enumerate(curve, 1) if (new := watch.on_step(step, loss))]
    assert [kind for _, kind in reports] == [["loss_rose"], ["loss_rose"]]
    assert reports[0][0] == 10
    assert reports[1][0] > 41
