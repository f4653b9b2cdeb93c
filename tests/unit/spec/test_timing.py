"""From measured steps to the time of a training."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.spec.estimate.estimate import add_queue_time
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import (
    NOT_MEASURED,
    Problem,
    StepTiming,
    Timings,
    Workload,
    count_tokens,
    estimate_time,
    operations,
    save_steps,
)
from trainyard.spec.training import Hyperparameters, TrainerConfig, resolve_trainer

SHAPE = ModelShape(
    hidden=64, layers=2, feed_forward=128, vocabulary=500, heads=4, key_value_heads=2, head_size=16, tied=True
)


def config(**settings: Any) -> TrainerConfig:
    return resolve_trainer(TrainerConfig.model_validate(settings), "starter")


def make_timing(**settings: Any) -> StepTiming:
    usual: dict[str, Any] = {"source": "run", "time": 1.0, "max_length": 512, "rows_per_batch": 4, "rows_per_step": 4}
    times = {"seconds_per_step": 0.5, "start_s": 0.3, "load_s": 6.0, "end_s": 0.7, "tokens_per_row": 100.0}
    return StepTiming(**(usual | times | settings))


def seconds(work: Workload, *timings: StepTiming, trainer_config: TrainerConfig | None = None) -> float:
    seconds_needed = estimate_time(SHAPE, trainer_config or config(), work, Timings(timings)).seconds
    assert seconds_needed is not None
    return seconds_needed


def test_without_a_measurement_there_is_no_time() -> None:
    time_estimate = estimate_time(SHAPE, config(), Workload(1000, 750), Timings(note="the file is broken"))
    assert time_estimate.seconds is None
    assert time_estimate.basis == f"{NOT_MEASURED}; the file is broken"
    assert estimate_time(SHAPE, config(), Workload(), Timings([make_timing()])).seconds is None


def test_the_parts_of_a_training_add_up() -> None:
    work = Workload(1000, 750, 100.0)
    # 750 steps of half a second, and four checkpoints on the way
    timing = make_timing(save_s=0.25, rows=1000)
    assert seconds(work, timing) == pytest.approx(0.3 + 6 + 750 * 0.5 + 4 * 0.25 + 0.7)
    assert save_steps(Hyperparameters(), 750) == 150


def test_loading_grows_with_the_rows() -> None:
    timing = make_timing(rows=200, load_s_per_row=0.01)
    assert seconds(Workload(1000, 10, 100.0), timing) - seconds(Workload(200, 10, 100.0), timing) == pytest.approx(8.0)


def test_a_step_is_scaled_by_its_operations() -> None:
    short, long = Workload(40, 10, 100.0), Workload(40, 10, 400.0)
    ratio = operations(SHAPE, config(), 4, 400) / operations(SHAPE, config(), 4, 100)
    assert ratio > 4  # attention
    assert (seconds(long, make_timing()) - 7) / (seconds(short, make_timing()) - 7) == pytest.approx(ratio)


def test_a_step_of_the_same_size_wins_over_a_similar_one() -> None:
    other = make_timing(max_length=128, seconds_per_step=99.0, time=2.0)
    assert seconds(Workload(40, 10, 100.0), make_timing(), other) == pytest.approx(7 + 5)
    time_estimate = estimate_time(SHAPE, config(), Workload(40, 10, 100.0), Timings([other]))
    assert "at 128 tokens and 4 rows, scaled by operations" in time_estimate.basis


def test_the_median_of_the_newest_counts() -> None:
    slow = [make_timing(time=float(n), seconds_per_step=step) for n, step in enumerate((9.0, 0.5, 0.5, 0.4, 0.6, 7.0))]
    assert seconds(Workload(40, 10, 100.0), *slow) == pytest.approx(7 + 5)


def test_the_same_data_says_steps_and_tokens() -> None:
    timing = make_timing(data="abc", steps_per_epoch=25.0)
    time_estimate = estimate_time(SHAPE, config(), Workload(None, None, None, frozenset({"abc"})), Timings([timing]))
    assert (time_estimate.steps, time_estimate.tokens) == (250, 10_000)
    assert count_tokens(None, 3.0) is None


def test_an_operation_of_a_pair_counts_both_sides() -> None:
    pair = config(stage="dpo")
    assert operations(SHAPE, pair, 1, 200) > operations(SHAPE, config(), 1, 200)  # the reference is one more forward
    assert operations(SHAPE, config(method="full"), 1, 100) == 1.5 * operations(SHAPE, config(), 1, 100)


def test_a_probe_that_did_not_fit_speaks_for_larger_ones() -> None:
    timings = Timings((), (Problem(time=5.0, max_length=512, rows_per_batch=4, why="out of memory"),))
    assert timings.find_problem(config()) is not None
    assert timings.find_problem(config(hyperparameters={"batch_size": 8})) is not None
    assert timings.find_problem(config(hyperparameters={"batch_size": 2})) is None
    assert Timings((make_timing(time=6.0),), timings.problems).find_problem(config()) is None


def test_the_queue_is_part_of_the_time() -> None:
    assert add_queue_time(10.0, 5.0) == (5.0, 15.0, ("queue: 5 s until the device is free",))
    assert add_queue_time(10.0, None)[:2] == (None, 10.0)
    assert add_queue_time(None, 5.0) == (5.0, None, ())
