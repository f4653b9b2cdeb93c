"""A native training that is killed at a random step, or at any point of a checkpoint's writing, ends in the same bits.

`make faults SEEDS=50` spreads more kills; the seeds are in the names of the tests.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.errors import TrainyardError

SEEDS = int(os.environ.get("SEEDS", "3"))
STEPS = 14
POINTS = ("checkpoint.written", "checkpoint.synced", "checkpoint.manifest", "checkpoint.renamed", "result.written")
CONFIG: dict[str, Any] = {
    "backend": "native",
    "method": {"type": "lora", "dropout": 0.1},
    "hyperparameters": {"save_steps": 3, "epochs": 2, "gradient_accumulation": 1},
}
later = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def whole(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train_as_child(jobs(**CONFIG), tmp_path_factory.mktemp("whole"))


def train_killed_at(fault: str, jobs: Jobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Kill the first start at `fault`, then start again without touching anything."""
    job = jobs(**CONFIG)
    monkeypatch.setenv("TRAINYARD_FAULT", fault)
    with pytest.raises(TrainyardError, match="E-KILLED: The program was ended from outside by SIGKILL"):
        train_as_child(job, folder)
    monkeypatch.delenv("TRAINYARD_FAULT")
    return train_as_child(job, folder)


def assert_same(ran: Ran, whole: Ran) -> None:
    name = "adapter_model.safetensors"
    ran_weights, whole_weights = load_file(ran.folder / name), load_file(whole.folder / name)
    assert ran_weights.keys() == whole_weights.keys()
    assert all(torch.equal(ran_weights[key], whole_weights[key]) for key in whole_weights)
    assert ran.record["losses"] == whole.record["losses"]
    assert len(whole.record["losses"]) == STEPS


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=later) for seed in range(SEEDS)], ids=lambda seed: f"seed {seed}"
)
def test_killed_at_a_random_step(
    seed: int, jobs: Jobs, whole: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = random.Random(seed).randint(1, STEPS - 1)
    assert_same(train_killed_at(f"step.{step}", jobs, tmp_path, monkeypatch), whole)


@pytest.mark.parametrize("point", [pytest.param(point, marks=later) for point in POINTS])
def test_killed_at_each_point_of_a_checkpoint(
    point: str, jobs: Jobs, whole: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 1 if point == "result.written" else random.Random(point).randint(1, 3)
    assert_same(train_killed_at(f"{point}#{passes}", jobs, tmp_path, monkeypatch), whole)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_in_the_middle_of_an_evaluation(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation of step 6, after the best checkpoint of an earlier one: it is made again, and ends in the same."""
    eval_settings = {"share": 0.2, "steps": 2, "patience": 3, "load_best": True}
    hyper = {**CONFIG["hyperparameters"], "epochs": 3, "learning_rate": 3e-2}
    monkeypatch.setitem(CONFIG, "eval", eval_settings)
    monkeypatch.setitem(CONFIG, "hyperparameters", hyper)
    whole = train_as_child(jobs(**CONFIG), tmp_path / "whole")
    ran = train_killed_at("evaluation.6", jobs, tmp_path / "killed", monkeypatch)
    assert ran.record["evaluation"] == whole.record["evaluation"]
    assert ran.record["losses"] == whole.record["losses"]
    name = "adapter_model.safetensors"
    ran_weights, whole_weights = load_file(ran.folder / name), load_file(whole.folder / name)
    assert all(torch.equal(ran_weights[key], whole_weights[key]) for key in whole_weights)
