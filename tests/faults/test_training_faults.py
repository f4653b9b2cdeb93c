"""A training that dies at the worst moments: the next start uses the newest valid checkpoint, and nothing is lost.

Every case runs real processes and compares the final adapter, bit by bit, with an uninterrupted run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard.backends.base import work_folder
from trainyard.backends.job import TrainingJob
from trainyard.compute.events import EventTail
from trainyard.compute.lease import holder
from trainyard.errors import TrainyardError
from trainyard.settings import load_settings

pytestmark = [pytest.mark.faults, pytest.mark.slow]

STEPS = {"save_steps": 5, "epochs": 2}
ADAPTER = "adapter_model.safetensors"

RUN = """
import sys
from pathlib import Path
from trainyard.backends.base import run_training
from trainyard.backends.job import TrainingJob
from trainyard.settings import load_settings
folder = Path(sys.argv[1])
job = TrainingJob.model_validate_json((folder / "job.json").read_text())
run_training(job, folder / "out", settings=load_settings(home=folder / "home"))
"""


@pytest.fixture(scope="module")
def whole(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train_as_child(jobs(hyperparameters=STEPS), tmp_path_factory.mktemp("whole"))


def assert_same_adapter(ran: Ran, other: Ran) -> None:
    weights, other_weights = load_file(ran.folder / ADAPTER), load_file(other.folder / ADAPTER)
    assert all(torch.equal(weights[name], other_weights[name]) for name in other_weights)
    assert ran.record["losses"] == other.record["losses"]


@pytest.mark.parametrize(
    ("fault", "restarted_from"),
    [
        ("step.2", "zero"),
        ("checkpoint.written", "zero"),
        ("checkpoint.written#2", {"step": 5}),
        ("checkpoint.synced#2", {"step": 5}),
        ("checkpoint.manifest#2", {"step": 5}),
        ("checkpoint.renamed#2", {"step": 10}),
        ("step.13", {"step": 10}),
        ("result.written", {"step": 10}),
    ],
)
def test_killed_at_a_named_point(
    *, jobs: Jobs, whole: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, restarted_from: object
) -> None:
    job = jobs(hyperparameters=STEPS)
    monkeypatch.setenv("TRAINYARD_FAULT", fault)
    with pytest.raises(TrainyardError, match="E-KILLED: The program was ended from outside by SIGKILL"):
        train_as_child(job, tmp_path)
    monkeypatch.delenv("TRAINYARD_FAULT")
    ran = train_as_child(job, tmp_path)
    assert ran.of("begin")[0]["restarted_from"] == restarted_from
    assert_same_adapter(ran, whole)


def wait_for_step(job: TrainingJob, home: Path, step: int) -> None:
    tail = EventTail(work_folder(job, load_settings(home=home)) / "events.jsonl")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(event["event"] == "progress" and event["step"] >= step for event in tail.read()):
            return
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not reached")


def test_killed_parent_the_child_saves_and_the_next_start_continues(jobs: Jobs, tmp_path: Path) -> None:
    """What a killed worker leaves: an orphan that saves within its time, then a restart that waits for it."""
    job = jobs(hyperparameters={"max_steps": 300, "save_steps": 1000})
    (tmp_path / "job.json").write_text(job.model_dump_json())
    parent = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], env={**os.environ, "HF_HUB_OFFLINE": "1"})
    wait_for_step(job, tmp_path / "home", 3)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    ran = train_as_child(job, tmp_path)
    restart = ran.of("begin")[0]["restarted_from"]
    assert restart["step"] >= 3
    assert holder(Path(job.locks) / "cpu-0.lock") is None
    assert [step for step, _, _ in ran.record["losses"]] == list(range(1, 301))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_that_fills_up_keeps_the_last_checkpoint_and_the_run_continues_with_more_space(
    jobs: Jobs, small_disk: Path
) -> None:
    job = jobs(hyperparameters={"save_steps": 2, "max_steps": 12})
    with pytest.raises(TrainyardError, match=r"E-DISK-FULL: .* at least [\d,]+ bytes are needed, [\d,]+ are free"):
        train_as_child(job, small_disk)
    checkpoints = work_folder(job, load_settings(home=small_disk / "home")) / "checkpoints"
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names
    assert all(name.startswith("step-") for name in names)
    assert not (small_disk / "out").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    ran = train_as_child(job, small_disk)
    assert ran.of("begin")[0]["restarted_from"] == {"step": int(names[-1][5:])}
