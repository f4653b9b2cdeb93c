"""How a night trains for real: its own time, its own answer to a device that is too small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.backends.base import work_folder
from trainyard.backends.job import TrainingJob, mirror_address
from trainyard.data.corpora import Corpora
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.night.deps import TrainingRequest
from trainyard.night.training import LocalTrainer
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.night import read_night
from trainyard.stores.artifacts import Produced, ProducedSet
from trainyard.stores.markers.records import Marker

Train = Callable[..., Produced]
HYPER = {"max_steps": 2, "batch_size": 8, "max_length": 64, "precision": "fp32"}


@pytest.fixture
def order(tmp_path: Path, tiny_model: Path) -> TrainingRequest:
    """Twelve commits to learn from, with an hour for it."""
    corpora = Corpora(tmp_path / "corpora")
    corpora.add("engineering", "sft", [{"diff": f"+{n}", "message": f"Change {n}"} for n in range(12)])
    tuples = corpora.read("engineering", "sft").tuples
    marker = Marker(
        run="20270101", tenant="acme", role="engineering", bucket="engineering", method="sft", rows=12,
        corpus_sha256="0" * 64, corpus="corpus", base_model=str(tiny_model), created=0.0,
    )  # fmt: skip
    return TrainingRequest(marker, tuples, tmp_path / "work", budget_s=3600.0, renew_if_due=lambda: None)


def trainer(order: TrainingRequest, run: Train, **training: Any) -> LocalTrainer:
    trainer_fields = {
        "method": "lora",
        "device": "cpu",
        "base_model": order.marker.base_model,
        "hyperparameters": HYPER,
    }
    config = read_night({"tenant": "acme", "phase2": {"training": {**trainer_fields, **training}}})
    return LocalTrainer(config, load_settings(home=order.work.parent / "home", threads=1), run)


class Small:
    """Stands for `run_training` on a device that takes four rows at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.budgets: list[float] = []

    def __call__(self, job: TrainingJob, folder: Path, *, budget_s: float, settings: Settings, **_: Any) -> Produced:
        self.sizes.append(job.config.hyperparameters.batch_size)
        self.budgets.append(budget_s)
        work_folder(job, settings).mkdir(parents=True)
        if self.sizes[-1] > 4:
            raise TrainyardError("The device ran out of memory.", code="E-DEVICE-MEMORY")
        (folder / "adapter").mkdir(parents=True)
        return Produced(outputs={Port.ADAPTER: ProducedSet(folder="adapter")}, facts={"steps": 2})


def test_a_training_that_does_not_fit_is_tried_with_half(order: TrainingRequest) -> None:
    small = Small()
    trained = trainer(order, small).train(order)
    assert small.sizes == [8, 4]
    assert trained.facts["out_of_memory"]["batch_size"] == [8, 4]
    assert small.budgets[1] <= small.budgets[0] <= 3600


def test_a_training_that_does_not_fit_fails_where_that_is_asked_for(order: TrainingRequest) -> None:
    small = Small()
    with pytest.raises(LimitExceeded, match="E-DEVICE-MEMORY"):
        trainer(order, small, launch={"on_oom": "fail"}).train(order)
    assert small.sizes == [8]


@pytest.mark.parametrize(("budget_s", "expected"), [(None, 3600), (60, 60), (7200, 3600)])
def test_a_training_has_the_shorter_of_two_budgets(budget_s: int | None, expected: int, order: TrainingRequest) -> None:
    small = Small()
    trainer(order, small, hyperparameters={**HYPER, "batch_size": 4}, budget_s=budget_s).train(order)
    assert small.budgets == [pytest.approx(expected, abs=30)]


def test_a_marker_is_the_same_training_on_every_date_and_machine(order: TrainingRequest) -> None:
    """It continues from its checkpoint, here or in the mirror, whatever the tenant of the machine's own settings is."""
    here = trainer(order, Small(), engine={"mirror": "file:///mirror"})
    there = LocalTrainer(here.config, load_settings(home=order.work.parent / "there", threads=1, tenant="acme"))
    again = replace(order, work=order.work.parent / "there" / "work", budget_s=60.0)
    first, second = here.job(order), there.job(again)
    assert mirror_address(first) == mirror_address(second)
    other = replace(order, marker=replace(order.marker, tenant="beta"))
    assert mirror_address(here.job(other)) != mirror_address(first)
