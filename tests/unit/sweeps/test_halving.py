"""The scheduler on metrics that are made up: what it promotes, what it leaves, and that it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.selection import choose_by_default
from trainyard.spec.chain import ChainSpec
from trainyard.sweeps.asha import Trial, TrialState, find_best, find_promotion
from trainyard.sweeps.scheduling import Segment, SegmentEnd, TrialSchedule
from trainyard.sweeps.spec import SweepSpec, parse_range
from trainyard.sweeps.study import SweepStudy

LEVELS = (3, 9, 27)
CHAIN = ChainSpec.model_validate(
    {"nodes": [{"type": "data_source", "config": {"path": "d.jsonl"}}, {"type": "trainer"}]}
)


def make_paused(number: int, **metrics: float) -> Trial:
    values = {int(step.removeprefix("at")): value for step, value in metrics.items()}
    return Trial(number=number, params={}, state=TrialState.PAUSED, found=values, target=max(values))


def sweep_spec(trials: int = 9, **changes: object) -> SweepSpec:
    fields = {
        "name": "sweep", "chain": CHAIN, "trainer": "trainer", "parameters": {"x": parse_range("x", "uniform(0, 1)")},
        "trials": trials, "sampler": "random", "rungs": LEVELS[:-1], "steps": LEVELS[-1], **changes,
    }  # fmt: skip
    return SweepSpec.model_validate(fields)


def measure(segment: Segment) -> float:
    """A metric that is better for a smaller x, at every step."""
    return float(segment.trial.params["x"] or 0.0)


def drain(
    schedule: TrialSchedule, metric: Callable[[Segment], float] = measure, most: int = 1000
) -> list[tuple[int, int]]:
    """Carry out every segment; return (trial, step) in order."""
    carried = []
    for _ in range(most):
        segment = schedule.take()
        if segment is None:
            break
        step = segment.until or LEVELS[-1]
        carried.append((segment.trial.number, step))
        state = TrialState.PAUSED if segment.until else TrialState.COMPLETED
        schedule.enter(segment, SegmentEnd(state, steps=step, value=metric(segment)))
    return carried


def test_nothing_is_promoted_before_a_rung_has_as_many_as_the_reduction() -> None:
    trials = [make_paused(0, at3=0.5), make_paused(1, at3=0.4)]
    assert find_promotion(trials, LEVELS, 3, highest=False) is None


def test_the_best_of_a_rung_is_promoted_by_one_level() -> None:
    trials = [make_paused(0, at3=0.5), make_paused(1, at3=0.4), make_paused(2, at3=0.6)]
    promotion = find_promotion(trials, LEVELS, 3, highest=False)
    assert promotion == (trials[1], 9)
    assert find_promotion(trials, LEVELS, 3, highest=True) == (trials[2], 9)


def test_the_highest_rung_is_looked_at_first() -> None:
    lower = [make_paused(number, at3=0.1 * number) for number in range(3)]
    upper = [make_paused(number, at3=0.0, at9=0.1 * number) for number in range(3, 6)]
    promotion = find_promotion([*lower, *upper], LEVELS, 3, highest=False)
    assert promotion == (upper[0], 27)


def test_those_that_were_promoted_stay_in_the_ranking_of_their_rung() -> None:
    promoted = Trial(number=0, params={}, state=TrialState.RUNNING, found={3: 0.1}, target=9)
    other_trials = [make_paused(number, at3=0.1 + 0.1 * number) for number in range(1, 5)]
    assert find_promotion([promoted, *other_trials], LEVELS, 3, highest=False) is None
    assert find_promotion([promoted, *other_trials, make_paused(5, at3=0.9)], LEVELS, 3, highest=False) == (
        other_trials[0],
        9,
    )


def test_a_training_that_ended_early_counts_at_every_rung_with_its_last_metric() -> None:
    early = Trial(number=0, params={}, state=TrialState.COMPLETED, value=0.0)
    other_trials = [make_paused(1, at3=0.5), make_paused(2, at3=0.6)]
    assert find_promotion([early, *other_trials], LEVELS, 3, highest=False) is None


def test_a_sweep_ends_with_the_best_trial_whole_and_the_others_stopped(tmp_path: Path) -> None:
    study = SweepStudy(tmp_path, sweep_spec())
    carried = drain(TrialSchedule(study.spec, study))
    study.stop_paused()
    trials = study.trials()
    best = find_best(trials, highest=False)
    assert best is not None
    assert best.params["x"] == min(trial.params["x"] for trial in trials)
    assert len(carried) == len(set(carried)), "no segment is carried out twice"
    assert sum(trial.steps for trial in trials) < 9 * 27 / 2
    assert {trial.state for trial in trials} == {TrialState.COMPLETED, TrialState.STOPPED}


@pytest.mark.parametrize("trials", [1, 2, 4])
def test_a_sweep_of_few_trials_finishes_its_best_all_the_same(tmp_path: Path, trials: int) -> None:
    study = SweepStudy(tmp_path, sweep_spec(trials))
    drain(TrialSchedule(study.spec, study))
    best = find_best(study.trials(), highest=False)
    assert best is not None
    assert best.params["x"] == min(trial.params["x"] for trial in study.trials())


@pytest.mark.parametrize("cut", choose_by_default([4], range(0, 14, 2)))
def test_a_sweep_that_was_cut_off_decides_as_one_that_was_not(tmp_path: Path, cut: int) -> None:
    whole = SweepStudy(tmp_path, sweep_spec(name="whole"))
    expected = drain(TrialSchedule(whole.spec, whole))
    again = SweepStudy(tmp_path, sweep_spec(name="again"))
    first = drain(TrialSchedule(again.spec, again), most=cut)
    assert TrialSchedule(again.spec, again).take() is not None  # and the process ends before it is carried out
    assert first + drain(TrialSchedule(again.spec, SweepStudy(tmp_path, again.spec))) == expected
    assert [trial.params for trial in again.trials()] == [trial.params for trial in whole.trials()]


def test_a_trial_that_fails_or_is_refused_takes_no_further_part(tmp_path: Path) -> None:
    study = SweepStudy(tmp_path, sweep_spec(3))
    schedule = TrialSchedule(study.spec, study)
    for state, code in ((TrialState.FAILED, "E-CRASH"), (TrialState.REFUSED, "R-BATCH")):
        segment = schedule.take()
        assert segment is not None
        schedule.enter(segment, SegmentEnd(state, code=code, message="why"))
    drain(schedule)
    assert [(trial.state, trial.code) for trial in study.trials()] == [
        (TrialState.FAILED, "E-CRASH"), (TrialState.REFUSED, "R-BATCH"), (TrialState.COMPLETED, ""),
    ]  # fmt: skip


def test_segments_that_are_running_are_not_given_out_again(tmp_path: Path) -> None:
    study = SweepStudy(tmp_path, sweep_spec(3))
    schedule = TrialSchedule(study.spec, study)
    segments = [schedule.take() for _ in range(4)]
    assert [segment.trial.number for segment in segments if segment] == [0, 1, 2]
    assert segments[3] is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(2, 5))
def test_promoted_trials_are_among_the_best_of_their_rung(values: list[float], reduction: int) -> None:
    trials = [make_paused(number, at3=value) for number, value in enumerate(values)]
    promotion = find_promotion(trials, LEVELS, reduction, highest=False)
    if len(values) < reduction:
        assert promotion is None
    else:
        assert promotion is not None
        assert promotion[0].found[3] == min(values)
