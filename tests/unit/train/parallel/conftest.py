"""Runs groups of processes and hands their results to the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY

ONE = "single"
PROCESSES = {ONE: 1, "ddp": 2, "zero1": 2, "zero2": 2, "fsdp_hybrid": 4}
"""Strategy -> the fewest processes that show what it does: a hybrid has two replicas of two."""
STRATEGIES = tuple(strategy for strategy in PROCESSES if strategy != ONE)


@dataclass(frozen=True)
class Ran:
    """A case that was carried out."""

    folder: Path

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What each process returned."""
        paths = sorted(self.folder.glob("[0-9].json"))
        logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
        assert paths, f"no process came to its end:\n{logs}"
        return [json.loads(path.read_text()) for path in paths]

    @property
    def weights(self) -> dict[str, Any]:
        return load_file(self.folder / "weights.safetensors")


Ask = Callable[[dict[str, dict[str, Any]]], dict[str, Ran]]


def case(run: str, strategy: str = ONE, processes: int | None = None, **arguments: Any) -> dict[str, Any]:
    """A function of `cases.py` in the processes of a strategy."""
    return {"run": run, "processes": processes or PROCESSES[strategy], "given": {"strategy": strategy, **arguments}}


def run_cases(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Ran]:
    """Run the cases one after another, in processes that are forked off one program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.train.parallel.world", str(folder)],
        input=json.dumps(cases), text=True, capture_output=True, env=environment, cwd=REPOSITORY, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: Ran(folder / name) for name in cases}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Carry out several cases for the price of one start."""
    return lambda cases: run_cases(tmp_path_factory.mktemp("world"), cases)
