"""How long a training would wait for its device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.plan.estimate import estimate_queue_s
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import EventWriter
from trainyard.compute.lease import claim_devices
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.stores.jobs import JobRecord, JobStore


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home")


def write_events(path: Path, events: list[tuple[str, dict[str, Any]]]) -> None:
    path.parent.mkdir(parents=True)
    writer = EventWriter(path)
    try:
        for name, fields in events:
            writer.emit(name, **fields)
    finally:
        writer.close()


def write_progress(folder: Path, *, steps: int, total: int, seconds_per_step: float, ago_s: float = 0.0) -> None:
    """The events of a training, whose last step was done so many seconds ago."""
    first = time.time() - ago_s - steps * seconds_per_step
    done = [{"step": step, "total_steps": total, "time": first + step * seconds_per_step} for step in range(steps + 1)]
    write_events(folder / EVENTS_FILE, [("started", {"pid": 1}), *(("progress", step) for step in done)])


def put_job(here: Settings, work: Path) -> None:
    JobStore(here.home / "jobs").put(
        JobRecord(id="one", stage=Stage.SFT, method=Method.LORA, backend=BackendName.NATIVE, work=str(work))
    )


def test_a_free_device_has_no_queue(here: Settings) -> None:
    assert estimate_queue_s(here) == 0.0


def test_the_training_on_the_device_says_how_long(here: Settings, tmp_path: Path) -> None:
    write_progress(tmp_path / "work", steps=10, total=40, seconds_per_step=20.0)
    put_job(here, tmp_path / "work")
    with claim_devices(here, run="one"):
        assert estimate_queue_s(here) == pytest.approx(30 * 20.0, abs=30)
    assert estimate_queue_s(here) == 0.0


def test_time_since_the_last_step_is_over(here: Settings, tmp_path: Path) -> None:
    write_progress(tmp_path / "work", steps=2, total=4, seconds_per_step=60.0, ago_s=50.0)
    put_job(here, tmp_path / "work")
    with claim_devices(here, run="one"):
        assert estimate_queue_s(here) == pytest.approx(70.0, abs=15)
    write_progress(tmp_path / "late", steps=2, total=4, seconds_per_step=60.0, ago_s=5000.0)
    put_job(here, tmp_path / "late")
    with claim_devices(here, run="one"):
        assert estimate_queue_s(here) == 0.0


def test_a_run_says_it_by_its_training(here: Settings, tmp_path: Path) -> None:
    write_progress(tmp_path / "work", steps=5, total=10, seconds_per_step=60.0)
    write_events(here.runs / "run-1" / EVENTS_FILE, [("job", {"node": "trainer", "folder": str(tmp_path / "work")})])
    with claim_devices(here, run="run-1"):
        assert estimate_queue_s(here) == pytest.approx(300.0, abs=30)


@pytest.mark.parametrize("run", ["", "a-night"])
def test_other_work_on_the_device_does_not_say_it(here: Settings, run: str) -> None:
    with claim_devices(here, run=run):
        assert estimate_queue_s(here) is None
