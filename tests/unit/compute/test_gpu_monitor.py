"""GPUs by NVML, rocm-smi and system_profiler: the shape, what is missing, and one look for all who ask."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.compute.monitor import (
    EVERY_S,
    NO_GPU,
    PROFILER,
    ROCM,
    Clocks,
    GpuMonitor,
    MonitorReading,
    ProcessMemory,
    apple_names,
    read_amd,
    read_apple,
    read_nvidia,
)
from trainyard.testing.gpu_tools import ROCM_SMI, ROCM_SMI_OLD, SYSTEM_PROFILER, SimulatedGpu, SimulatedNvml


def read(*devices: SimulatedGpu) -> MonitorReading:
    reading = read_nvidia(lambda: SimulatedNvml(list(devices)))
    assert reading is not None
    return reading


def test_the_example_of_the_specification() -> None:
    reading = read(SimulatedGpu(processes={7: 20_000, 8: None}))
    (gpu,) = reading.gpus
    assert (reading.state, reading.driver_version, reading.cuda_version) == ("ok", "535.129.03", "12.2")
    assert (gpu.index, gpu.name) == (0, "NVIDIA A100 80GB")
    assert (gpu.memory_total_mb, gpu.memory_used_mb, gpu.memory_free_mb) == (81_920, 24_576, 57_344)
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.temperature_c, gpu.power_draw_w) == (78, 30, 62, 245.0)
    assert gpu.clocks == Clocks(1_410, 1_512)
    assert gpu.processes == (ProcessMemory(7, 20_000), ProcessMemory(8, None))


@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 200_000), st.integers(0, 900)), max_size=4))
def test_used_and_free_memory_add_up_to_the_total(sizes: list[tuple[int, int, int]]) -> None:
    devices = [SimulatedGpu(total_mb=total + used, used_mb=used, reserved_mb=0) for total, used, _ in sizes]
    reading = read(*devices)
    assert all(gpu.memory_total_mb == gpu.memory_used_mb + gpu.memory_free_mb for gpu in reading.gpus)
    assert [gpu.index for gpu in reading.gpus] == list(range(len(sizes)))


@pytest.mark.parametrize(
    ("missing", "fields"),
    [
        ("utilization", {"utilization_gpu": None, "utilization_memory": None}),
        ("temperature", {"temperature_c": None}),
        ("power", {"power_draw_w": None}),
        ("clocks", {"clocks": Clocks()}),
        ("processes", {"processes": ()}),
    ],
)
def test_what_a_device_does_not_report_is_none(missing: str, fields: dict[str, object]) -> None:
    (gpu,) = read(SimulatedGpu(missing=frozenset({missing}), processes={7: 1})).gpus
    assert {name: getattr(gpu, name) for name in fields} == fields
    assert gpu.memory_used_mb == 24_576


def test_a_gpu_that_shares_the_machines_memory_has_its_size() -> None:
    (gpu,) = read(SimulatedGpu(missing=frozenset({"memory"}))).gpus
    assert gpu.memory_total_mb == psutil.virtual_memory().total >> 20
    assert 0 < gpu.memory_used_mb <= gpu.memory_total_mb


def test_no_gpu_is_a_state() -> None:
    assert read().state == NO_GPU
    assert read_nvidia(lambda: None) is None
    for error in (pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_LibraryNotFound):
        nvml = SimulatedNvml(fails=error)
        assert read_nvidia(lambda nvml=nvml: nvml) is None
    broken = read_nvidia(lambda: SimulatedNvml(fails=pynvml.NVMLError_NoPermission))
    assert broken is not None
    assert (broken.state, broken.gpus) == ("Insufficient Permissions", ())
    assert GpuMonitor((lambda: None,)).read() == MonitorReading(NO_GPU)


def answering(text: str) -> object:
    def run(command: Sequence[str]) -> bytes:
        assert tuple(command) in (ROCM, PROFILER)
        return text.encode()

    return run


def test_an_amd_gpu_by_rocm_smi() -> None:
    reading = read_amd(answering(ROCM_SMI), lambda name: name)  # type: ignore[arg-type]
    assert reading is not None
    (gpu,) = reading.gpus
    assert (reading.state, reading.driver_version, reading.cuda_version) == ("ok", "6.3.6", None)
    assert (gpu.name, gpu.memory_total_mb, gpu.memory_used_mb) == ("AMD Instinct MI210", 65_520, 8_203)
    assert (gpu.utilization_gpu, gpu.utilization_memory, gpu.temperature_c, gpu.power_draw_w) == (97, 12, 35, 41.0)
    assert gpu.clocks == Clocks(500, 1_600)
    assert gpu.processes == (ProcessMemory(2124, 8_192),)


def test_two_amd_gpus_without_some_sensors() -> None:
    reading = read_amd(answering(ROCM_SMI_OLD), lambda name: name)  # type: ignore[arg-type]
    assert reading is not None
    first, second = reading.gpus
    assert (first.name, first.temperature_c, first.utilization_memory) == ("Radeon RX 6800 XT", None, 3)
    assert (second.name, second.utilization_gpu) == ("AMD GPU 1", None)
    assert (second.temperature_c, second.power_draw_w) == (44, 130.0)
    assert first.processes == second.processes == (), "which card a process uses is not said"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"card0": {}}', '{"card0": {"VRAM Total Memory (B)": "many"}}'])
def test_an_answer_of_rocm_smi_that_nobody_can_read_is_a_state(text: str) -> None:
    reading = read_amd(answering(text), lambda name: name)  # type: ignore[arg-type]
    assert reading is not None
    assert reading.gpus == ()
    assert reading.state.startswith("rocm-smi could not be read") or reading.state == NO_GPU


def test_a_tool_that_is_missing_or_fails() -> None:
    assert read_amd(answering(""), lambda _name: None) is None  # type: ignore[arg-type]

    def fail(command: Sequence[str]) -> bytes:
        raise subprocess.TimeoutExpired(list(command), 10.0)

    reading = read_amd(fail, lambda name: name)
    assert reading is not None
    assert "timed out" in reading.state


def test_the_gpu_of_a_mac() -> None:
    apple_names.cache_clear()
    run = answering(SYSTEM_PROFILER)
    reading = read_apple(run, "darwin")  # type: ignore[arg-type]
    assert reading is not None
    (gpu,) = reading.gpus
    assert gpu.name == "Apple M2 Max"
    assert gpu.memory_total_mb == gpu.memory_used_mb + gpu.memory_free_mb == psutil.virtual_memory().total >> 20
    assert (gpu.utilization_gpu, gpu.temperature_c, gpu.power_draw_w) == (None, None, None)
    assert read_apple(run, "linux") is None  # type: ignore[arg-type]
    assert json.loads(SYSTEM_PROFILER)["SPDisplaysDataType"]


def test_however_many_ask_the_driver_is_asked_once_in_two_seconds() -> None:
    now, nvml = [100.0], SimulatedNvml([SimulatedGpu()])
    monitor = GpuMonitor((lambda: read_nvidia(lambda: nvml),), lambda: now[0])
    with ThreadPoolExecutor(8) as pool:
        reading = list(pool.map(lambda _: monitor.read(), range(200)))
    assert len(set(reading)) == 1
    assert nvml.polls == 1
    nvml.devices[0].used_mb = 5
    now[0] += EVERY_S - 0.01
    assert monitor.read() == reading[0]
    now[0] += 0.01
    assert monitor.read().gpus[0].memory_used_mb == 5
    assert (nvml.polls, nvml.open) == (2, 0), "NVML is closed after each look"


def test_the_first_source_that_finds_one_answers() -> None:
    sources = []

    def none() -> None:
        sources.append("none")

    def second() -> MonitorReading:
        return MonitorReading("ok")

    assert GpuMonitor((none, second, none)).read().state == "ok"
    assert sources == ["none"]
