"""A real night, killed at every named point of it and of its stores, then run again: the state is the same as ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import night_program
from trainyard.compute.child import FAULT_VARIABLE
from trainyard.night.deps import POINTS
from trainyard.stores.documents import POINTS as LEDGER_POINTS
from trainyard.stores.markers.records import POINTS as MARKER_POINTS
from trainyard.stores.objects.local import POINTS as OBJECT_POINTS

KILLED = -9
ELSEWHERE = {"marker.renewed"}
"""Passed only by a training that takes longer than a third of the lease: `night_program` renews before each effect."""
SECOND_PASSES = ("night.claim.after#2", "night.version.after#2", "night.upload.file#2", "marker.claimed#2")
EVERY = [*POINTS, *LEDGER_POINTS, *MARKER_POINTS, *OBJECT_POINTS, *SECOND_PASSES]


def program(folder: Path, *more: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({FAULT_VARIABLE: fault} if fault else {})}
    argv = [sys.executable, night_program.__file__, str(folder), *more]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)


def read_state(folder: Path) -> dict[str, Any]:
    return json.loads(program(folder, "--state").stdout)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """(a folder as it is before the night, the state after a night that nobody killed)."""
    before = tmp_path_factory.mktemp("night") / "before"
    night_program.prepare(before)
    after = before.with_name("after")
    shutil.copytree(before, after)
    assert program(after).returncode == 0
    return before, read_state(after)


def kill_and_run_again(fault: str, before: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(before, folder)
    first = program(folder, fault=fault)
    assert first.returncode == KILLED, f"{fault} was never passed: {first.stdout} {first.stderr}"
    second = program(folder)
    assert second.returncode == 0, second.stdout + second.stderr
    return read_state(folder)


def same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    """Numbers may have holes where a registration died; everything else is equal."""
    numbers = ("live", "cloud")
    assert {k: v for k, v in result.items() if k not in numbers} == {
        k: v for k, v in expected.items() if k not in numbers
    }
    assert len(result["cloud"]) >= len(expected["cloud"])
    assert all(result["live"].values())


@pytest.mark.faults
@pytest.mark.parametrize("fault", EVERY)
def test_killed_at_every_point(fault: str, uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    before, expected = uninterrupted
    same(kill_and_run_again(fault, before, tmp_path / "night"), expected)


def test_there_are_points_enough() -> None:
    assert len(EVERY) >= 30
    assert all(description.strip() for description in POINTS.values())
