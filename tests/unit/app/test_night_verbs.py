"""What this machine has against the trainings of a night, by the rows that a run is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Context
from trainyard.app.nights import (
    add_corrections,
    describe_night_refusals,
    list_night_refusals,
    load_night_config,
    run_once,
    run_worker,
    show_corpora,
)
from trainyard.errors import InvalidInput, Refused
from trainyard.night.training import LocalTrainer
from trainyard.operations.nights import AddInput, NightInput, RunNightInput, WorkerInput, corpora_text
from trainyard.settings import Settings
from trainyard.spec.axes.stages import Stage
from trainyard.spec.night import NightConfig, read_night

NO_CUDA = pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a machine with CUDA refuses neither")


@pytest.fixture
def here(tmp_path: Path, tiny_model: Path) -> Settings:
    return Settings(home=tmp_path / "home", working_folder=tmp_path, default_base_model=str(tiny_model))


def night(**training: Any) -> NightConfig:
    return read_night({"phase2": {"training": {"method": "lora", **training}}})


def list_unfit(config: NightConfig, here: Settings) -> list[str]:
    return [f"{reason.code} {reason.field}" for reason in list_night_refusals(config, here)]


@NO_CUDA
@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({}, []),
        ({"hyperparameters": {"precision": "fp16"}}, ["R-DEVICE phase2.training.hyperparameters.precision"]),
        ({"device": "cuda"}, ["R-DEVICE phase2.training.device"]),
        ({"engine": {"attention": "fa2"}}, ["R-DEVICE phase2.training.engine.attention"]),
    ],
)
def test_a_machine_is_asked_the_rows_of_a_run(training: dict[str, Any], expected: list[str], here: Settings) -> None:
    """Both buckets, the sft one and the dpo one, give the reason: it is listed once."""
    assert list_unfit(night(**training), here) == expected


@NO_CUDA
def test_the_markers_of_a_night_that_does_not_fit_wait_with_the_reason(here: Settings) -> None:
    config = night(hyperparameters={"precision": "fp16"})
    trainer = LocalTrainer(config, here, unfit=describe_night_refusals(config, here))
    assert trainer.missing().startswith("R-DEVICE phase2.training.hyperparameters.precision: This machine computes")
    assert LocalTrainer(night(), here, unfit=describe_night_refusals(night(), here)).missing() == ""


@NO_CUDA
def test_a_worker_whose_machine_cannot_train_does_not_start(here: Settings, tmp_path: Path) -> None:
    path = tmp_path / "night.yaml"
    path.write_text("phase2: {training: {method: lora, device: cuda}}")
    with pytest.raises(Refused, match=r"R-DEVICE phase2\.training\.device"):
        run_worker(WorkerInput(config=path, once=True), Context(here))


def test_settings_where_an_earlier_version_had_them_are_reported(here: Settings, tmp_path: Path) -> None:
    path = tmp_path / "night.yaml"
    path.write_text("phase2: {training: {method: lora, lora: {rank: 8}, preference: {beta: 0.2}}}")
    lines: list[str] = []
    config = load_night_config(path, None, Context(here, say=lines.append))
    assert (config.phase2.training.method.rank, config.phase2.training.stage) == (8, Stage.DPO.settings(beta=0.2))
    assert lines == [
        "night.yaml: phase2.training.lora.rank is deprecated: write phase2.training.method.rank.",
        "night.yaml: phase2.training.preference.beta is deprecated: write phase2.training.stage.beta.",
    ]


def test_a_night_that_is_done_runs_again_under_a_name_of_its_own(here: Settings, tmp_path: Path) -> None:
    path, context = tmp_path / "night.yaml", Context(here, say=lambda _text: None)
    path.write_text("tenant: acme")

    def run(*, again: bool) -> tuple[str, str]:
        report = run_once(RunNightInput(config=path, run="20270102", again=again), context)
        return report.run, report.state

    assert run(again=True) == ("20270102", "completed"), "it was not done: nothing has to be repeated"
    assert run(again=False) == ("20270102", "skipped")
    assert run(again=True) == ("20270102-2", "completed")
    assert run(again=True) == ("20270102-3", "completed")
    nights = here.home / "tenants" / "acme" / "nights"
    (nights / "20270102-3" / "report.json").unlink()
    assert run(again=True) == ("20270102-3", "completed"), "one that was killed is continued"
    assert sorted(path.name for path in nights.iterdir()) == ["20270102", "20270102-2", "20270102-3"]


def test_a_name_that_leads_outside_is_refused_again_too(here: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-NAME"):
        run_once(RunNightInput(run="../x", again=True), Context(here, say=lambda _text: None))


def test_the_corpora_are_a_table(here: Settings) -> None:
    context = Context(here, say=lambda _text: None)
    add_corrections(AddInput(prompt="Who?", shadow="Nobody.", verdict="Ada."), context)
    lines = [line.split() for line in corpora_text(show_corpora(NightInput(), context)).splitlines()]
    assert lines[0] == ["bucket", "method", "role", "valid", "threshold", "invalid", "duplicates", "missing"]
    rows = {row[0]: dict(zip(lines[0], row, strict=True)) for row in lines[1:]}
    row = rows["apprenticeship"]
    assert (row["method"], row["valid"]) == ("dpo", "1")
    assert int(row["missing"].replace(",", "")) == int(row["threshold"].replace(",", "")) - 1
