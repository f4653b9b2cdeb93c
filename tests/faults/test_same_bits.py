"""One training next to nothing and next to busy processes: the same choices, the same digest, the same bits.

`RUNS=3 pytest -s tests/faults/test_same_bits.py` prints a line for each run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.small_jobs import train_as_child, write_data
from trainyard.backends.choices import choices_digest
from trainyard.backends.job import prepare_job
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer

RUNS = int(os.environ.get("RUNS", "2"))
"""Runs under each load."""
BUSY = 4


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that take every core that they get."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def train_once(base: Path, data: dict[Port, Path], folder: Path) -> tuple[str, str]:
    """Train in a home that has decided nothing yet; the digest of job and choices, and the SHA-256 of the adapter."""
    settings = load_settings(home=folder / "home")
    hyper = {"max_steps": 12, "max_length": 64, "learning_rate": 1e-2}
    config = resolve_trainer(TrainerConfig.model_validate({"backend": "native", "hyperparameters": hyper}), str(base))
    job = prepare_job(
        config, str(base), settings, data={Port.SFT: str(data[Port.SFT])}, data_sha256={Port.SFT: "x"}, node="trainer"
    )
    assert job.choices is not None
    ran = train_as_child(job, folder)
    digest = f"{job.digest[:16]} {choices_digest(job.choices)[:16]}"
    return digest, hashlib.sha256((ran.folder / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_work_of_neighbours_changes_no_bit(tiny_model: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    results = []
    for count in (0, BUSY):
        with busy(count):
            for number in range(RUNS):
                digest, sha256 = train_once(tiny_model, data, tmp_path / f"{count}-{number}")
                print(
                    f"{count} busy, run {number}: digest {digest}, adapter {sha256[:16]}, load {os.getloadavg()[0]:.1f}"
                )
                results.append((digest, sha256))
    assert len(results) == 2 * RUNS
    assert len(set(results)) == 1, results
