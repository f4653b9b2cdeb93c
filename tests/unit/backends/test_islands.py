"""Islands of torchft, as a job starts them: the weights of the native engine, and an island that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.backends.job import TrainingJob
from trainyard.compute.events import Event

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]
pytest.importorskip("torchft")


def job(jobs: Jobs, engine: str, steps: int = 12) -> TrainingJob:
    launch = {"processes": 2, "diloco": {"type": engine, "num_islands": 2, "inner_steps": 4}}
    hyper = {"batch_size": 4, "max_steps": steps, "epochs": None, "save_steps": 4}
    return jobs(backend="native", launch=launch, hyperparameters=hyper)


def weights(ran: Ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder / "adapter_model.safetensors")


def test_both_engines_come_to_the_same_weights(jobs: Jobs, tmp_path: Path) -> None:
    native, torchft = (train_as_child(job(jobs, engine), tmp_path / engine) for engine in ("native", "torchft"))
    assert [point[1] for point in torchft.record["losses"]] == [point[1] for point in native.record["losses"]]
    expected = weights(native)
    assert all(torch.allclose(value, expected[name], atol=1e-7, rtol=0) for name, value in weights(torchft).items())


@pytest.mark.faults
def test_a_killed_island_starts_again_and_the_run_completes(jobs: Jobs, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if event["event"] == "progress" and event["step"] >= 20 and not killed:
            killed.extend(process.pid for process in psutil.process_iter(["cmdline"]) if is_second(process))
            os.kill(killed[0], signal.SIGKILL)

    def is_second(process: Any) -> bool:
        line = process.info["cmdline"] or []
        return bool(line) and str(tmp_path) in line[-1] and line[-1].endswith("/islands/1")

    ran = train_as_child(job(jobs, "torchft", steps=120), tmp_path / "killed", kill_once)
    assert len(ran.record["losses"]) == 120
    assert any("Island 1 was ended from outside and starts again" in event["text"] for event in ran.of("warning"))
