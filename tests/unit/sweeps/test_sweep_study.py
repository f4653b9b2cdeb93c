"""What Optuna chooses and keeps."""

from __future__ import annotations

import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from threading import Event

import pytest
from optuna.storages import RDBStorage

from tests.unit.sweeps.test_halving import CHAIN, sweep_spec
from trainyard.sweeps.asha import TrialState
from trainyard.sweeps.spec import SweepSpec, parse_range
from trainyard.sweeps.study import STUDY_FILE, SweepStudy, read_trials

RANGES = {"lr": "loguniform(1e-5, 1e-3)", "rank": "choice(8, 16)", "drop": "uniform(0, 0.2, 0.1)", "n": "int(1, 9, 2)"}


def make_study(folder: Path, sampler: str, ranges: dict[str, str] | None = None, seed: int = 0) -> SweepStudy:
    parameters = {path: parse_range(path, text) for path, text in (ranges or RANGES).items()}
    spec = SweepSpec.model_validate(
        {
            "name": "study", "chain": CHAIN, "trainer": "trainer", "parameters": parameters, "sampler": sampler,
            "seed": seed,
        }
    )  # fmt: skip
    return SweepStudy(folder, spec)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_are_within_their_ranges_and_of_their_types(tmp_path: Path, sampler: str) -> None:
    study = make_study(tmp_path, sampler)
    for number in range(14):
        params = study.add(3).params
        assert 1e-5 <= params["lr"] <= 1e-3
        assert params["rank"] in (8, 16)
        assert params["drop"] in (0.0, 0.1, 0.2)
        assert params["n"] in (1, 3, 5, 7, 9)
        study.pause(number, 3, math.log(params["lr"]) ** 2)


def test_a_seed_gives_the_same_values_and_another_seed_others(tmp_path: Path) -> None:
    samples = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        study = make_study(tmp_path / name, "random", seed=seed)
        samples.append([study.add(3).params for _ in range(4)])
    assert samples[0] == samples[1] != samples[2]
    assert len({str(sample) for sample in samples[0]}) == 4


@pytest.mark.slow
def test_tpe_learns_from_paused_trials(tmp_path: Path) -> None:
    study = make_study(tmp_path, "tpe", {"x": "uniform(0, 1)"})
    values = []
    for number in range(40):
        values.append(float(study.add(3).params["x"] or 0.0))
        study.pause(number, 3, (values[-1] - 0.8) ** 2)
    early = sum(abs(value - 0.8) for value in values[:10]) / 10
    late = sum(abs(value - 0.8) for value in values[-10:]) / 10
    assert late < early / 2


def test_a_grid_has_every_combination_once(tmp_path: Path) -> None:
    study = make_study(tmp_path, "grid", {"rank": "choice(8, 16)", "n": "int(1, 3)"})
    combinations = [tuple(study.add(3).params.values()) for _ in range(6)]
    assert sorted(combinations) == [(8, 1), (8, 2), (8, 3), (16, 1), (16, 2), (16, 3)]
    assert combinations != sorted(combinations), "the seed shuffles them"


def test_trials_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    study = make_study(tmp_path, "random")
    for _ in range(5):
        study.add(3)
    study.pause(0, 3, 0.5)
    study.pause(1, 3, math.inf)
    study.complete(2, 9, 0.25)
    study.end(3, TrialState.REFUSED, "E-SPEC-VALUE", "no such value")
    trials = make_study(tmp_path, "random").trials()
    states = [TrialState.PAUSED, TrialState.PAUSED, TrialState.COMPLETED, TrialState.REFUSED, TrialState.RUNNING]
    assert [trial.state for trial in trials] == states
    assert (trials[0].found, trials[1].found) == ({3: 0.5}, {3: math.inf})
    assert (trials[2].value, trials[2].steps) == (0.25, 9)
    assert (trials[3].code, trials[3].message) == ("E-SPEC-VALUE", "no such value")
    study.aim(0, 9)
    study.stop_paused()
    assert [trial.state for trial in study.trials()][:2] == [TrialState.RUNNING, TrialState.STOPPED]


def test_a_sweep_begins_while_others_look_at_it(tmp_path: Path) -> None:
    spec = sweep_spec()
    for turn in range(8):
        folder, done = tmp_path / str(turn), Event()
        folder.mkdir()
        assert read_trials(folder, spec) == []

        def look(folder: Path = folder, done: Event = done) -> int:
            most = 0
            while not done.is_set():
                most = max(most, len(read_trials(folder, spec)))
            return most

        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            try:
                study = SweepStudy(folder, spec)
                for number in range(3):
                    study.add(3)
                    study.pause(number, 3, 1.0)
            finally:
                done.set()
            assert all(future.result() <= 3 for future in looking)
        assert read_trials(folder, spec) == study.trials()
        assert sorted(path.name for path in folder.iterdir()) == ["study.db"]


def test_a_file_without_its_study_has_no_trials_until_the_sweep_continues(tmp_path: Path) -> None:
    spec = sweep_spec()
    RDBStorage(f"sqlite:///{tmp_path / STUDY_FILE}")
    assert read_trials(tmp_path, spec) == []
    SweepStudy(tmp_path, spec).add(3)
    assert len(read_trials(tmp_path, spec)) == 1


def test_another_file_is_compared_with_the_tables_of_this_optuna(tmp_path: Path) -> None:
    """One that was read before is not, until there is another one under its name."""
    spec, path = sweep_spec(), tmp_path / STUDY_FILE
    SweepStudy(tmp_path, spec).add(3)
    assert len(read_trials(tmp_path, spec)) == len(read_trials(tmp_path, spec)) == 1
    other = tmp_path / "other.db"
    copyfile(path, other)
    with closing(sqlite3.connect(other)) as tables, tables:
        tables.execute("UPDATE alembic_version SET version_num = 'v0.0.1.a'")
    other.replace(path)
    with pytest.raises(RuntimeError, match="no longer compatible"):
        read_trials(tmp_path, spec)
