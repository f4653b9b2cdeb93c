"""A sweep of 16 trials that is killed twice: the same best as 16 whole trainings, in less than half of their steps.

The kill takes the sweep and the training that it is carrying out: both are one process here (`tools/sweep_program.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.small_jobs import Jobs
from tools.sweep_program import STEPS, TRIALS, make_spec, run_sweep, trained_steps
from trainyard.sweeps.asha import Trial, TrialState, find_best
from trainyard.sweeps.study import SweepStudy

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

ADAPTER = "result/adapter/adapter_model.safetensors"


@pytest.fixture(scope="module")
def whole(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    """Every trial trained to its end."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run_sweep(folder, make_spec(jobs.model, "none"), jobs).trials()


@pytest.fixture(scope="module")
def halving(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    """The sweep with rungs, killed twice at named points and continued by the same command."""
    folder = tmp_path_factory.mktemp("halving")
    data = {port.value: str(path) for port, path in jobs.data.items()}
    (folder / "given.json").write_text(json.dumps({"model": str(jobs.model), "data": data, "scheduler": "asha"}))
    command = [sys.executable, "-m", "tools.sweep_program", str(folder)]
    for fault in ("step.7#2", "sweep.segment#9", None):
        environment = {**os.environ, **({"TRAINYARD_FAULT": fault} if fault else {})}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if fault else 0), done.stderr[-2000:]
    return folder, SweepStudy(folder, make_spec(jobs.model, "asha")).trials()


def test_the_best_is_that_of_whole_trainings(
    whole: tuple[Path, list[Trial]], halving: tuple[Path, list[Trial]]
) -> None:
    expected, best = find_best(whole[1], highest=False), find_best(halving[1], highest=False)
    assert expected is not None
    assert best is not None
    assert (best.number, best.params, best.value) == (expected.number, expected.params, expected.value)


def test_no_trial_is_drawn_twice_and_none_is_left(halving: tuple[Path, list[Trial]]) -> None:
    trials = halving[1]
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert len({json.dumps(trial.params) for trial in trials}) == TRIALS
    states = Counter(trial.state for trial in trials)
    assert states.keys() == {TrialState.COMPLETED, TrialState.STOPPED}


def test_the_values_are_those_of_the_sweep_that_was_not_killed(
    whole: tuple[Path, list[Trial]], halving: tuple[Path, list[Trial]]
) -> None:
    assert [trial.params for trial in halving[1]] == [trial.params for trial in whole[1]]


def test_it_takes_at_most_half_of_the_steps(halving: tuple[Path, list[Trial]]) -> None:
    folder, trials = halving
    planned, num_steps = sum(trial.steps for trial in trials), trained_steps(folder)
    assert num_steps <= TRIALS * STEPS / 2
    assert planned <= num_steps <= planned + 2 * 5, "a kill costs at most the steps since the last checkpoint"


def test_a_trial_that_paused_has_the_bits_of_one_that_did_not(
    whole: tuple[Path, list[Trial]], halving: tuple[Path, list[Trial]]
) -> None:
    paused = {path.parents[2].name: path for path in halving[0].glob(f"work/*/{ADAPTER}")}
    straight = {path.parents[2].name: path for path in whole[0].glob(f"work/*/{ADAPTER}")}
    assert paused.keys() <= straight.keys(), "a trial has the same job whether it stops at rungs or not"
    assert len(paused) == sum(trial.state is TrialState.COMPLETED for trial in halving[1]) > 0
    for name, path in paused.items():
        weights, straight_weights = load_file(path), load_file(straight[name])
        assert all(weights[key].equal(straight_weights[key]) for key in straight_weights)


def test_metrics_at_rungs_are_those_on_the_way_of_a_whole_training(
    whole: tuple[Path, list[Trial]], halving: tuple[Path, list[Trial]]
) -> None:
    values = {trial.number: trial.value for trial in whole[1]}
    finished = [trial for trial in halving[1] if trial.state is TrialState.COMPLETED]
    assert all(trial.value == values[trial.number] for trial in finished)
