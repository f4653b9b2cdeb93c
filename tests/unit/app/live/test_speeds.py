"""What `/metrics` says of running trainings, of the queue and of GPUs: from files, and with bounded labels."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.live.jobs import open_index
from trainyard.app.live.trainings import measure_speed
from trainyard.compute.monitor import GpuMonitor, GpuReading, MonitorReading
from trainyard.settings import settings
from trainyard.spec.states import JobState
from trainyard.surfaces.rest import measured
from trainyard.surfaces.rest.measured import ApiMetrics, read_gpus, read_jobs, read_trainings

WORDS = {"backend": "native", "stage": "sft", "method": "lora"}


def progress(step: int, when: float, speed: float | None = None) -> dict[str, Any]:
    return {"event": "progress", "step": step, "time": when, **({"tokens_per_second": speed} if speed else {})}


def put(number: int, state: JobState, folder: Path | None = None, created: float = 1000.0) -> None:
    run_id = f"{number:08x}-0000-4000-8000-{number:012x}"
    row = {"run_id": run_id, "id": f"job-{run_id[-12:]}", "name": f"secret-{number}", "tenant": "acme", "state": state}
    trainings = [{"node": "trainer", "folder": str(folder), "since": 0.0}] if folder else []
    more = {"created": created, "message": "", "base_model": "", "tags": [], "trainings": trainings}
    open_index(settings()).put([{**row, **WORDS, **more}], time.time())


def write_events(folder: Path, *events: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def note_kept() -> None:
    open_index(settings()).note_try(time.time())
    open_index(settings()).note_success(time.time())


def test_a_step_takes_the_mean_since_the_last_start() -> None:
    events = [
        progress(1, 100.0), progress(2, 200.0), {"event": "started", "time": 900.0}, progress(3, 1000.0, 50.0),
        {"event": "checkpoint", "tier": "disk", "seconds": 0.5, "bytes": 100},
        {"event": "checkpoint", "tier": "mirror", "seconds": 9.0}, progress(7, 1002.0, 80.0),
    ]  # fmt: skip
    speed = measure_speed(WORDS, events)
    assert (speed.step_s, speed.tokens_per_s, speed.checkpoint_s, speed.checkpoint_bytes) == (0.5, 80.0, 0.5, 100)
    assert measure_speed(WORDS, [progress(3, 1.0), {"event": "progress", "step": "x", "time": None}]).step_s is None
    nothing = measure_speed(WORDS, [])
    assert (nothing.step_s, nothing.tokens_per_s, nothing.checkpoint_s) == (None, None, None)


def test_metrics_of_running_trainings_name_no_job(tmp_path: Path) -> None:
    metrics = ApiMetrics((lambda: read_jobs(settings()), lambda: read_trainings(settings())))
    assert "trainyard_oldest_pending_job_age_seconds 0.0" in metrics.text().decode()
    job_events = write_events(tmp_path / "one", progress(1, 10.0, 100.0), progress(2, 11.0, 100.0))
    other = write_events(tmp_path / "other", progress(1, 10.0, 30.0), progress(2, 13.0, 30.0))
    put(1, JobState.RUNNING, job_events)
    put(2, JobState.RUNNING, other)
    put(3, JobState.RUNNING)
    put(4, JobState.COMPLETED, write_events(tmp_path / "ended", progress(1, 10.0), progress(2, 99.0)))
    put(5, JobState.PENDING, created=time.time() - 120)
    put(6, JobState.PENDING, created=time.time() - 60)
    assert "trainyard_training_step_seconds" not in metrics.text().decode(), "nobody keeps the index"
    note_kept()
    text = metrics.text().decode()
    labels = 'backend="native",method="lora",stage="sft"'
    assert f"trainyard_training_step_seconds{{{labels}}} 2.0" in text
    assert f"trainyard_training_tokens_per_second{{{labels}}} 130.0" in text
    assert "trainyard_checkpoint_seconds" not in text
    age = re.search(r"^trainyard_oldest_pending_job_age_seconds (\S+)$", text, re.M)
    assert age is not None
    assert 120 <= float(age[1]) < 180
    assert not re.search(r"job-|secret|acme", text)


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    slow = [progress(step, step * 10.0, 1.0) for step in range(1, 1001)]
    quick = [progress(step, 10_000.0 + (step - 1000) * 0.5, 2.0) for step in range(1001, 4001)]
    put(1, JobState.RUNNING, write_events(tmp_path / "long", *slow, *quick))
    note_kept()
    values = {name: value for name, _, _, value in read_trainings(settings())}
    assert values["trainyard_training_step_seconds"] == pytest.approx(0.5)


def test_a_gpu_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    full = GpuReading(0, "A", 1000, 250, utilization_gpu=75, temperature_c=61, power_draw_w=212.5)
    reading = MonitorReading("ok", (full, GpuReading(1, "B", 1000, 0)))
    monkeypatch.setattr(measured, "MONITOR", GpuMonitor((lambda: reading,)))
    values = {(name, labels["gpu"], labels.get("kind")): value for name, _, labels, value in read_gpus()}
    mib = 1 << 20
    assert values == {
        ("trainyard_gpu_memory_bytes", "0", "used"): 250 * mib, ("trainyard_gpu_memory_bytes", "0", "free"): 750 * mib,
        ("trainyard_gpu_utilization_ratio", "0", None): 0.75, ("trainyard_gpu_temperature_celsius", "0", None): 61,
        ("trainyard_gpu_power_watts", "0", None): 212.5,
        ("trainyard_gpu_memory_bytes", "1", "used"): 0, ("trainyard_gpu_memory_bytes", "1", "free"): 1000 * mib,
    }  # fmt: skip
