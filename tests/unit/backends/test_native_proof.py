"""The proof of bit-identical resume: that it holds, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.selection import choose_by_default, slow
from trainyard.backends.native.proof import (
    DIGESTS,
    METHODS,
    MODES,
    SHARED_LOSSES,
    STAGES,
    VARIATIONS,
    Cell,
    build_world,
    cells,
    train_cell,
)  # fmt: skip
from trainyard.backends.results import DECISIONS_FILE
from trainyard.spec.axes.methods import TRAINED_METHODS, Method
from trainyard.spec.axes.stages import PreferenceLoss, Stage

pytestmark = pytest.mark.integration

SFT = Cell(Stage.SFT, None, Method.LORA)


def run_proof(folder: Path, stages: list[str], methods: list[str], jobs: int = 2) -> list[dict[str, Any]]:
    """Run the program of the proof, as the command does."""
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"stages": stages, "methods": methods, "jobs": jobs}))
    command = [sys.executable, "-m", "trainyard.backends.native.proof", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]


def test_there_is_a_cell_for_each_stage_with_each_method() -> None:
    all_cells = cells()
    losses = len(PreferenceLoss) - 1
    assert len(all_cells) == len(set(all_cells)) == (len(STAGES) + losses) * len(METHODS) + len(VARIATIONS)
    assert {cell.loss for cell in all_cells if cell.stage is Stage.DPO} == set(PreferenceLoss)


@pytest.mark.slow
def test_stopped_and_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    verdicts = run_proof(tmp_path / "proof", ["sft", "kto"], ["lora", "freeze"])
    expected = cells((Stage.SFT, Stage.KTO), (Method.LORA, Method.FREEZE))
    assert {cell.variation for cell in expected} >= {"", "neftune", "pissa", "lisa", "pause", "codi"}
    assert [(verdict["stage"], verdict["method"], verdict["mode"]) for verdict in verdicts] == [
        (cell.stage, cell.trained, mode) for cell in expected for mode in MODES
    ]
    assert all(verdict["identical"] and not verdict["differs"] for verdict in verdicts), verdicts
    assert all(len(verdict["sha256"][name]) == 64 for verdict in verdicts for name in DIGESTS)


@pytest.mark.parametrize(
    "name", choose_by_default([name for name in VARIATIONS if not name.endswith("-full")], VARIATIONS)
)
def test_a_variation_that_is_stopped_ends_in_the_same_bits(name: str, world: Path, tmp_path: Path) -> None:
    cell = Cell(VARIATIONS[name].stage, None, VARIATIONS[name].method, name)
    stop_inside_an_accumulation(world, tmp_path / "stopped", cell)
    assert list_digests(world, tmp_path / "stopped", None, cell) == list_digests(
        world, tmp_path / "straight", None, cell
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_cell_is_identical(tmp_path: Path) -> None:
    verdicts = run_proof(tmp_path / "proof", [str(stage) for stage in STAGES], list(TRAINED_METHODS))
    assert len(verdicts) == len(cells()) * len(MODES)
    assert [verdict for verdict in verdicts if not verdict["identical"]] == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    build_world(folder)
    return folder


@pytest.fixture(scope="module")
def straight(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return list_digests(world, tmp_path_factory.mktemp("straight"), None)


def list_digests(world: Path, folder: Path, dropped: str | None, cell: Cell = SFT) -> dict[str, str]:
    train_cell(cell, world, folder, lambda: False, dropped)
    digests: dict[str, str] = json.loads((folder / "digests.json").read_text())
    return digests


def stop_inside_an_accumulation(world: Path, folder: Path, cell: Cell = SFT) -> None:
    calls = iter(range(100))
    train_cell(cell, world, folder, lambda: next(calls) == 7)
    assert not (folder / "digests.json").exists()


def test_nothing_dropped_is_identical(world: Path, straight: dict[str, str], tmp_path: Path) -> None:
    stop_inside_an_accumulation(world, tmp_path)
    assert list_digests(world, tmp_path, None) == straight


@pytest.mark.parametrize(
    ("stage", "loss"),
    [(Stage.DPO, PreferenceLoss.SIGMOID), slow((Stage.DPO, PreferenceLoss.IPO)),
     (Stage.DPO, PreferenceLoss.KTO_PAIR), (Stage.KTO, None)],
)  # fmt: skip
def test_shared_prompts_and_packed_pairs_resume_to_the_same_bits(
    stage: Stage, loss: PreferenceLoss | None, world: Path, tmp_path: Path
) -> None:
    cell = Cell(stage, loss, Method.LORA)
    stop_inside_an_accumulation(world, tmp_path / "parts", cell)
    assert json.loads((tmp_path / "parts" / DECISIONS_FILE).read_text())["shared_prompt"] == (
        loss is None or loss in SHARED_LOSSES
    )
    assert list_digests(world, tmp_path / "parts", None, cell) == list_digests(world, tmp_path / "whole", None, cell)


@pytest.mark.parametrize("part", ["weights", "optimizer", "rate", "gradients", "random", "counters", "progress"])
def test_a_part_of_the_state_that_is_dropped_is_seen(
    part: str, world: Path, straight: dict[str, str], tmp_path: Path
) -> None:
    stop_inside_an_accumulation(world, tmp_path)
    assert list_digests(world, tmp_path, part) != straight
