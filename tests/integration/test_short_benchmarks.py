"""Every benchmark runs to its end in its short form: small sizes, one round, no bar on times."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.__main__ import FOLDER, NOT_BENCHMARKS, names
from benchmarks.latent.__main__ import TASKS as LATENT
from benchmarks.rl.__main__ import SEEDS as RL
from tests.conftest import REPOSITORY

LIMIT_S = 880
"""For the longest on a machine that does much else; it takes half a minute on two idle cores."""
pytestmark = pytest.mark.timeout(900)

PARTS = {"bars", "echo_service", "harness", "trainers"}
"""Modules that benchmarks share."""


def run_short(folder: Path, *arguments: str) -> str:
    """Run `python -m …` with a home of its own and return its output; fails with it."""
    folder.mkdir(exist_ok=True)
    own = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "PREFECT_API_KEY")}
    environment = {
        **own, "TRAINYARD_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "prefect"),
        "TMPDIR": str(folder), "TRAINYARD_BENCHMARKS_SHORT": "1", "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", names())
def test_benchmark_runs(name: str, tmp_path: Path) -> None:
    assert run_short(tmp_path / "run", "benchmarks", "--short", name).strip()


def test_checkouts_are_compared(tmp_path: Path) -> None:
    output = run_short(tmp_path / "run", "benchmarks.checkouts", ".", ".", "document_ledger")
    assert output.startswith("document_ledger")


@pytest.mark.slow
@pytest.mark.parametrize(("package", "task"), [*(("latent", task) for task in LATENT), *(("rl", task) for task in RL)])
def test_task_runs(package: str, task: str, tmp_path: Path) -> None:
    assert '"task"' in run_short(tmp_path / "run", f"benchmarks.{package}", task, "--share", "0.002")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "speed", "stall", "dsa_decode", "latent"])
def test_gpu_benchmark_is_rehearsed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_GPU_TESTS_DEVICE", "cpu")
    assert f"gpu_{name}_rehearsal:" in run_short(tmp_path / "run", f"benchmarks.gpu.{name}")


def test_no_file_is_left_out() -> None:
    files: Sequence[str] = [path.stem for path in FOLDER.glob("*.py")]
    assert set(files) - set(names()) - PARTS == {"__init__", "__main__", "checkouts"}
    assert PARTS < NOT_BENCHMARKS
