"""The ten learning-rate curves at their corners, and a rate that goes on where it was saved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import Corrupt
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.compat.advice import step_reasons
from trainyard.spec.rates import SCHEDULES, highest_rate
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.train.schedules import LearningRate, Plateau

TOTAL, WARMUP = 100, 10
COUNTED = (0, 1, WARMUP, 55, 99, TOTAL)
GOLDEN = {
    Schedule.LINEAR: (1 / 11, 2 / 11, 1.0, 0.5, 1 / 90, 0.0),
    Schedule.COSINE: (1 / 11, 2 / 11, 1.0, 0.5, 3.045_9e-4, 0.0),
    Schedule.CONSTANT: (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    Schedule.CONSTANT_WITH_WARMUP: (1 / 11, 2 / 11, 1.0, 1.0, 1.0, 1.0),
    Schedule.COSINE_WITH_RESTARTS: (1 / 11, 2 / 11, 1.0, 1.0, 1.217_97e-3, 0.0),
    Schedule.POLYNOMIAL: (1 / 11, 2 / 11, 1.0, 0.25, 1 / 8100, 0.0),
    Schedule.REDUCE_ON_PLATEAU: (1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    Schedule.WSD: (1 / 11, 2 / 11, 1.0, 1.0, 0.024_471_7, 0.0),
    Schedule.INVERSE_SQRT: (1 / 11, 2 / 11, 1.0, (10 / 55) ** 0.5, (10 / 99) ** 0.5, 10**-0.5),
    Schedule.ONE_CYCLE: (0.04, 0.068_949_1, 0.999_695_4, 0.482_550_3, 4e-6, 4e-6),
}


def config(schedule: Schedule, warmup_ratio: float = 0.1) -> TrainerConfig:
    return TrainerConfig(hyperparameters=Hyperparameters(schedule=schedule, warmup_ratio=warmup_ratio))


def optimizer(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.AdamW(groups)


@pytest.mark.parametrize("schedule", Schedule)
def test_the_corners_of_each_curve(schedule: Schedule) -> None:
    multipliers = [SCHEDULES[schedule](step, TOTAL, WARMUP) for step in COUNTED]
    assert multipliers == pytest.approx(GOLDEN[schedule], rel=1e-4, abs=1e-12)


@given(schedule=st.sampled_from(Schedule), total=st.integers(1, 300), data=st.data())
def test_every_rate_is_between_zero_and_the_peak(schedule: Schedule, total: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, total))
    curve = [SCHEDULES[schedule](step, total, warmup) for step in range(total + 3)]
    assert all(0.0 <= multiplier <= 1.0 + 1e-12 for multiplier in curve)
    rising = curve[: max(0, warmup - 1)]
    assert rising == sorted(rising)


def test_steps_of_warmup_win_over_the_share() -> None:
    hyper = Hyperparameters(schedule=Schedule.LINEAR, warmup_ratio=0.5, warmup_steps=3)
    assert [hyper.warmup(total) for total in (2, 100)] == [3, 3]
    assert Hyperparameters(warmup_ratio=0.5, warmup_steps=0).warmup(100) == 0
    assert Hyperparameters(warmup_ratio=0.03).warmup(101) == 4
    assert "warmup_steps" not in Hyperparameters().model_dump()
    trainer, weights = TrainerConfig(hyperparameters=hyper), optimizer(1.0)
    rate = LearningRate(weights, trainer, 100)
    rates = []
    for _ in range(5):
        rates.append(weights.param_groups[0]["lr"])
        rate.step()
    assert rates == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1.0, 1 - 1 / 97])


def test_restarts_really_restart() -> None:
    curve = [SCHEDULES[Schedule.COSINE_WITH_RESTARTS](step, 101, 1) for step in range(1, 101)]
    assert curve[0] == curve[50] == 1.0
    assert curve[49] < 0.001


def test_groups_keep_their_proportion() -> None:
    """LoRA+ trains B at sixteen times the rate of A."""
    two = optimizer(1e-4, 1.6e-3)
    rate = LearningRate(two, config(Schedule.COSINE), 50)
    for _ in range(50):
        rate.step()
        assert rate.last[1] == pytest.approx(16 * rate.last[0])
    assert rate.last == [0.0, 0.0]


def test_the_warm_up_is_a_rounded_up_share_of_the_steps() -> None:
    assert LearningRate(optimizer(1.0), config(Schedule.LINEAR, 0.03), 34).warmup_steps == 2
    assert LearningRate(optimizer(1.0), config(Schedule.LINEAR, 0.0), 34).last == [1.0]


@pytest.mark.parametrize("schedule", Schedule)
def test_a_loaded_rate_goes_on_like_an_uninterrupted_one(schedule: Schedule) -> None:
    first = optimizer(3e-4, 1e-5)
    straight = LearningRate(first, config(schedule), TOTAL)
    for step in range(37):
        straight.step(metric=1.0 / (1 + min(step, 5)))
    saved, weights = straight.state_dict(), first.state_dict()

    second = optimizer(3e-4, 1e-5)
    second.load_state_dict(weights)  # brings the rates of step 37; the peaks have to survive it
    resumed = LearningRate(second, config(schedule), TOTAL)
    resumed.load_state_dict(saved)
    assert resumed.last == straight.last
    for _ in range(37, TOTAL):
        straight.step(metric=0.5)
        resumed.step(metric=0.5)
        assert resumed.last == straight.last


@pytest.mark.parametrize(
    ("other", "total", "peak", "named"),
    [
        (config(Schedule.COSINE), TOTAL, 1e-4, "schedule linear, this run's has cosine"),
        (config(Schedule.LINEAR), TOTAL + 1, 1e-4, "total_steps 100, this run's has 101"),
        (config(Schedule.LINEAR, 0.2), TOTAL, 1e-4, "warmup_steps 10, this run's has 20"),
        (config(Schedule.LINEAR), TOTAL, 2e-4, r"peaks \[0.0001\], this run's has \[0.0002\]"),
    ],
)
def test_another_curve_is_refused(other: TrainerConfig, total: int, peak: float, named: str) -> None:
    saved = LearningRate(optimizer(1e-4), config(Schedule.LINEAR), TOTAL).state_dict()
    changed = LearningRate(optimizer(peak), other, total)
    before = changed.last
    with pytest.raises(Corrupt, match=named) as caught:
        changed.load_state_dict(saved)
    assert caught.value.code == "E-CHECKPOINT-MISMATCH"
    assert changed.last == before


def test_a_plateau_lowers_the_rate_after_the_patience() -> None:
    rate = LearningRate(optimizer(1.0), config(Schedule.REDUCE_ON_PLATEAU), TOTAL // 2)
    for _ in range(12):
        assert rate.last == [1.0]
        rate.step(metric=2.0)
    assert rate.last == [0.1]
    rate.step()  # no metric, no change
    assert rate.last == [0.1]


def test_a_plateau_watches_means_of_windows_and_not_single_losses() -> None:
    """A loss that falls slowly under noise: single values rarely reach a new minimum, means do."""
    generator = torch.Generator().manual_seed(0)
    losses = [2.0 - step / 1000 + 0.5 * torch.randn((), generator=generator).item() for step in range(1000)]
    rate = LearningRate(optimizer(1.0), config(Schedule.REDUCE_ON_PLATEAU), 1000)
    single = Plateau()
    for loss in losses:
        rate.step(metric=loss)
        single.see(loss)
    assert rate.last == [1.0]
    assert single.factor < 1e-6


def test_a_plateau_takes_a_metric_that_comes_now_and_then() -> None:
    plateau = Plateau(window=20)
    for step in range(1, 601):
        plateau.step(step, 3.0 if step % 50 == 0 else None)
    assert (plateau.best, plateau.factor) == (3.0, 0.1)


def test_a_metric_that_is_no_number_is_no_improvement() -> None:
    plateau = Plateau()
    plateau.see(1.0)
    for _ in range(11):
        plateau.see(float("nan"))
    assert (plateau.best, plateau.factor) == (1.0, 0.1)


@given(schedule=st.sampled_from(Schedule), total=st.integers(1, 400), ratio=st.floats(0.0, 1.0))
def test_a_run_with_a_share_of_warm_up_reaches_its_peak(schedule: Schedule, total: int, ratio: float) -> None:
    """From its first step on, which has a rate above zero, however short the run is."""
    hyper = Hyperparameters(schedule=schedule, warmup_ratio=ratio, max_steps=total)
    if total >= schedule.facts.least_steps:
        warmup = hyper.warmup(total)
        assert SCHEDULES[schedule](0, total, warmup) > 0.0
        assert highest_rate(schedule, total, warmup) == pytest.approx(1.0, abs=0.1)
    reasons = step_reasons(TrainerConfig(hyperparameters=hyper), total, None)
    assert [reason.row for reason in reasons] == (["schedule-steps"] if total < schedule.facts.least_steps else [])


@pytest.mark.parametrize(("warmup", "refused"), [(0, False), (9, False), (10, True), (1000, True)])
def test_a_warm_up_that_the_run_does_not_end_is_refused(warmup: int, refused: bool) -> None:
    trainer = TrainerConfig(hyperparameters=Hyperparameters(warmup_steps=warmup))
    assert [reason.code for reason in step_reasons(trainer, 10, "trainer")] == (["R-SCHEDULE"] if refused else [])


def test_the_highest_rate_of_a_long_run_is_found() -> None:
    assert highest_rate(Schedule.LINEAR, 10_000_000, 9_876_543) == 1.0
    assert highest_rate(Schedule.LINEAR, 10, 1000) == pytest.approx(10 / 1001)


def test_a_checkpoint_of_an_earlier_release_keeps_its_warm_up() -> None:
    """It counted from zero; its rates go on as they began."""
    saved = LearningRate(optimizer(1.0), config(Schedule.LINEAR), TOTAL).state_dict()
    del saved["first"]
    weights = optimizer(1.0)
    resumed = LearningRate(weights, config(Schedule.LINEAR), TOTAL)
    resumed.load_state_dict({**saved, "steps": 4})
    assert resumed.last == [4 / WARMUP]
    again = LearningRate(optimizer(1.0), config(Schedule.LINEAR), TOTAL)
    again.load_state_dict(resumed.state_dict())
    resumed.step()
    again.step()
    assert resumed.last == again.last == [5 / WARMUP]
    whole = LearningRate(optimizer(1.0), config(Schedule.LINEAR, 1.0), TOTAL)
    whole.load_state_dict({**whole.state_dict(), "first": 0, "warmup_steps": TOTAL - 1, "steps": 2})
    assert whole.last == [2 / (TOTAL - 1)]
