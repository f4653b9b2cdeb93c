"""The flow of a sweep against a real server, with real trainings: rungs, shared data, a training that is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.sweep import sweep
from trainyard.app.run_records import read_events, read_result
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.sweeps.asha import Trial, TrialState
from trainyard.sweeps.spec import SweepSpec, parse_range
from trainyard.sweeps.study import STUDY_FILE, SweepStudy, dump_spec, read_record, sweep_folder

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1200)]

LEVELS = (2, 6)


@pytest.fixture
def spec(home: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """Three trials, of which one continues to the end."""
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(home.parent))
    monkeypatch.setenv("TRAINYARD_DEFAULT_BASE_MODEL", str(tiny_model))
    monkeypatch.setenv("TRAINYARD_THREADS", "1")
    settings.cache_clear()
    rows = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(30)]
    (home.parent / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    hyper = {"max_steps": LEVELS[-1], "batch_size": 2, "max_length": 64, "precision": "fp32"}
    trainer = {"hyperparameters": hyper, "eval": {"share": 0.2, "steps": LEVELS[0]}}
    nodes = [{"type": "data_source", "config": {"path": "data.jsonl"}}, {"type": "trainer", "config": trainer}]
    ranges = {"trainer.learning_rate": parse_range("", "loguniform(1e-5, 1e-2)")}
    return SweepSpec(
        name="three", chain=ChainSpec.model_validate({"name": "tiny", "nodes": nodes}), trainer="trainer",
        parameters=ranges, trials=3, sampler="random", rungs=LEVELS[:-1], steps=LEVELS[-1],
    )  # fmt: skip


def run_sweep(spec: SweepSpec) -> State[Any]:
    return asyncio.run(sweep(SweepSpec.model_validate(dump_spec(spec)), return_state=True))


def read_trials(spec: SweepSpec) -> list[Trial]:
    return SweepStudy(sweep_folder(settings(), spec.name), spec).trials()


def test_the_best_third_continues_and_the_data_is_made_once(spec: SweepSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    state = run_sweep(spec)
    assert state.is_completed(), state.message
    trials = read_trials(spec)
    assert Counter(trial.state for trial in trials) == {TrialState.STOPPED: 2, TrialState.COMPLETED: 1}
    best = next(trial for trial in trials if trial.state is TrialState.COMPLETED)
    assert best.found[LEVELS[0]] == min(trial.found[LEVELS[0]] for trial in trials)
    assert f"Best: trial {best.number}, loss {best.value:.4f} with trainer.learning_rate=" in str(state.message)

    run_id = read_record(settings(), spec.name).run_id
    recorded = [*read_events(settings().runs / run_id)]
    events = [(event["node"], event["event"]) for event in recorded]
    assert [event["text"] for event in recorded if "again" in event.get("text", "")] == [
        "started again: it was stopped before"
    ]
    assert events.count(("data-source", "finished")) == 1
    assert events.count(("data-source", "reused")) == 3, "two other trials, and the one that continued"
    assert sum(node.startswith("trainer.") and event == "job" for node, event in events) == 4
    result = read_result(settings().runs / run_id)
    assert result is not None
    assert [node.id for node in result.nodes] == ["trainer.0", "trainer.1", "trainer.2"]

    # A second sweep of the same values trains nothing: its trial is served from the artifact store.
    monkeypatch.setenv("TRAINYARD_FAULT", "step.1")  # a training that began would end here
    value = parse_range("", f"choice({best.params['trainer.learning_rate']!r})")
    parameters = {"trainer.learning_rate": value}
    again = spec.model_copy(update={"name": "again", "trials": 1, "parameters": parameters})
    state = run_sweep(again)
    assert state.is_completed(), state.message
    assert [trial.value for trial in read_trials(again)] == [best.value]


def test_a_training_that_is_killed_each_time_is_a_failed_trial(
    spec: SweepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_FAULT", "step.1")
    small_spec = spec.model_copy(update={"trials": 1})
    state = run_sweep(small_spec)
    assert state.is_failed()
    assert "No trial finished. Trial 0: E-KILLED" in str(state.message)
    (trial,) = read_trials(small_spec)
    assert (trial.state, trial.code) == (TrialState.FAILED, "E-KILLED")


def list_folders(spec: SweepSpec) -> set[str]:
    """The work folders of the sweep's trainings in its present run."""
    events = read_events(settings().runs / read_record(settings(), spec.name).run_id)
    return {event["folder"] for event in events if event["event"] == "job"}


def test_a_sweep_whose_run_is_gone_continues_its_trainings_in_another_one(spec: SweepSpec) -> None:
    single = spec.model_copy(update={"trials": 1})
    assert run_sweep(single).is_completed()
    before, run_id = list_folders(single), read_record(settings(), spec.name).run_id
    (sweep_folder(settings(), spec.name) / STUDY_FILE).unlink()
    shutil.rmtree(settings().artifacts)
    assert run_sweep(single).is_completed()
    assert read_record(settings(), spec.name).run_id != run_id
    assert list_folders(single) == before
    assert len(before) == 1
