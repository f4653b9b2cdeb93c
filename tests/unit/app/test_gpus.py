"""`gpus`: the shape that programs read, the memory of each job, and what a tenant sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Caller, Context
from trainyard.app.gpus import list_gpus
from trainyard.app.live.jobs import open_index
from trainyard.compute.monitor import GpuMonitor, read_nvidia
from trainyard.operations.gpus import gpus_text
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.testing.gpu_tools import SimulatedGpu, SimulatedNvml


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A home whose index has one running job: this process and its children."""
    context = Context(load_settings(home=tmp_path / "home"), say=lambda _text: None)
    index = open_index(context.settings)
    row = {"run_id": "r", "id": "job-0123456789ab", "tenant": "acme", "state": JobState.RUNNING, "created": 1.0}
    index.put([{**row, "pid": os.getpid()}], time.time())
    index.note_success(time.time())
    index.note_try(time.time())
    return context


def monitor(**more: Any) -> GpuMonitor:
    nvml = SimulatedNvml([SimulatedGpu(**more)])
    return GpuMonitor((lambda: read_nvidia(lambda: nvml),))


def test_the_memory_of_a_jobs_processes_is_the_jobs(context: Context, child: subprocess.Popen[bytes]) -> None:
    gpus = list_gpus(monitor(processes={os.getpid(): 100, child.pid: 20_000, 1: 7}).read(), context)
    (gpu,) = json.loads(gpus.model_dump_json())["gpus"]
    assert gpu["processes"] == [
        {"job": "job-0123456789ab", "memory_mb": 20_100, "pids": sorted([os.getpid(), child.pid])},
        {"job": None, "memory_mb": 7, "pids": [1]},
    ]
    assert {key: gpu[key] for key in gpu if key != "processes"} == {
        "index": 0, "name": "NVIDIA A100 80GB", "memory_total_mb": 81_920, "memory_used_mb": 24_576,
        "memory_free_mb": 57_344, "utilization_gpu": 78, "utilization_memory": 30, "temperature_c": 62,
        "power_draw_w": 245.0, "clock_graphics_mhz": 1_410, "clock_memory_mhz": 1_512,
    }  # fmt: skip
    text = gpus_text(gpus)
    assert "24,576 / 81,920" in text
    assert "job-0123456789ab, 20,100 MiB" in text
    assert "CUDA 12.2" in text


def test_a_tenant_sees_its_own_processes(context: Context) -> None:
    for tenant, jobs in (("acme", ["job-0123456789ab"]), ("other", [])):
        asking = Context(context.settings, caller=Caller("t", tenant=tenant))
        (gpu,) = list_gpus(monitor(processes={os.getpid(): 100, 1: 7}).read(), asking).gpus
        assert [process.job for process in gpu.processes] == jobs


def test_memory_that_the_driver_does_not_say_is_not_guessed(context: Context) -> None:
    (gpu,) = list_gpus(monitor(processes={os.getpid(): None}).read(), context).gpus
    assert [process.memory_mb for process in gpu.processes] == [None]


def test_without_a_gpu_the_answer_is_a_state(context: Context) -> None:
    gpus = list_gpus(GpuMonitor((lambda: None,)).read(), context)
    answer = json.loads(gpus.model_dump_json())
    machine = answer.pop("machine")
    assert answer.pop("devices")[0] == {"device": 0, "holder": None, "waiting": []}
    assert answer == {
        "state": "no GPU", "gpus": [], "driver_version": None, "cuda_version": None, "alerts": [],
    }  # fmt: skip
    first, processors, memory, *_ = gpus_text(gpus).splitlines()
    assert first == "no GPU"
    assert processors.startswith(f"{machine['processors']} processors, load ")
    assert 0 < machine["memory_used_mb"] < machine["memory_total_mb"]
    assert memory == f"memory: {machine['memory_used_mb']:,} of {machine['memory_total_mb']:,} MiB used"


def test_the_memory_of_a_job_is_that_of_its_processes(context: Context) -> None:
    machine = list_gpus(GpuMonitor((lambda: None,)).read(), context).machine
    assert machine is not None
    assert [job.job for job in machine.jobs] == ["job-0123456789ab"]  # this process is its worker
    assert machine.jobs[0].memory_mb > 0
