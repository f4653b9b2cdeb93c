"""NVIDIA's GPUs by NVML: https://docs.nvidia.com/deploy/nvml-api (nvidia-ml-py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from trainyard.compute.gpus import MIB, import_nvml
from trainyard.compute.monitor.readings import NO_GPU, OK, Clocks, GpuReading, MonitorReading, ProcessMemory

MILLIWATTS = 1000


def read_nvidia(find: Callable[[], Any] = import_nvml) -> MonitorReading | None:
    """Return every NVIDIA GPU; None without the driver's library. Never raises."""
    nvml = find()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return None
    except nvml.NVMLError as error:
        return MonitorReading(str(error))
    try:
        gpus = tuple(read_one(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        driver, cuda = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion_v2()
        return MonitorReading(OK if gpus else NO_GPU, gpus, driver, f"{cuda // 1000}.{cuda % 1000 // 10}")
    except nvml.NVMLError as error:
        return MonitorReading(str(error))
    finally:
        nvml.nvmlShutdown()


def read_one(nvml: Any, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *more: Any) -> Any:
        """Return the answer of a function; None where the device, or a slice of one, does not have it."""
        try:
            return getattr(nvml, name)(handle, *more)
        except nvml.NVMLError:
            return None

    total, used = read_memory(ask("nvmlDeviceGetMemoryInfo"))
    rates, power = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetPowerUsage")
    return GpuReading(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        memory_total_mb=total,
        memory_used_mb=used,
        utilization_gpu=rates and rates.gpu,
        utilization_memory=rates and rates.memory,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_draw_w=None if power is None else round(power / MILLIWATTS, 1),
        clocks=Clocks(
            ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_GRAPHICS), ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM)
        ),
        processes=tuple(map(process_memory, ask("nvmlDeviceGetComputeRunningProcesses") or ())),
    )


def read_memory(info: Any) -> tuple[int, int]:
    """(total, used) in MiB; a GPU without memory of its own shares the machine's."""
    if info is None:
        machine = psutil.virtual_memory()
        return machine.total // MIB, (machine.total - machine.available) // MIB
    return info.total // MIB, info.used // MIB


def process_memory(process: Any) -> ProcessMemory:
    used = process.usedGpuMemory  # None where the driver does not say
    return ProcessMemory(process.pid, None if used is None else used // MIB)
