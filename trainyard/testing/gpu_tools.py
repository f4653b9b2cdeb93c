"""Doubles of what reads GPUs: an NVML with pynvml's own types and errors, and the outputs of the vendors' commands.

nvml = SimulatedNvml(devices=[SimulatedGpu(used_mb=24_576)])
read_nvidia(lambda: nvml)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 1 << 20
NO_SLICE = 0xFFFFFFFF
"""The number of a slice where a GPU is whole."""


@dataclass
class SimulatedGpu:
    """A GPU of the double; it answers as a device without the features in `missing`."""

    name: str = "NVIDIA A100 80GB"
    total_mb: int = 81_920
    used_mb: int = 24_576
    reserved_mb: int = 600
    """Of the driver: neither used nor free."""
    processes: dict[int, int | None] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    millijoules: int = 5_000_000
    """Counted since its driver was loaded."""


@dataclass
class SimulatedNvml:
    """The functions of pynvml that Trainyard calls. Its errors and structures are pynvml's own."""

    devices: list[SimulatedGpu] = field(default_factory=list)
    fails: type[Exception] | None = None
    """What `nvmlInit` raises, such as `pynvml.NVMLError_DriverNotLoaded`."""
    polls: int = 0
    open: int = 0

    def __getattr__(self, name: str) -> object:
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if self.fails is not None:
            raise self.fails()
        self.polls, self.open = self.polls + 1, self.open + 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "535.129.03"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12_020

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimulatedGpu:
        if index >= len(self.devices):
            raise pynvml.NVMLError_InvalidArgument()
        return self.devices[index]

    def nvmlDeviceGetName(self, handle: SimulatedGpu) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: SimulatedGpu) -> object:
        def info() -> Any:
            free = handle.total_mb - handle.used_mb - handle.reserved_mb
            return pynvml.c_nvmlMemory_t(handle.total_mb * MIB, free * MIB, handle.used_mb * MIB)

        return answer(handle, "memory", info)

    def nvmlDeviceGetUtilizationRates(self, handle: SimulatedGpu) -> object:
        return answer(handle, "utilization", lambda: pynvml.c_nvmlUtilization_t(78, 30))

    def nvmlDeviceGetTemperature(self, handle: SimulatedGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return int(answer(handle, "temperature", lambda: 62))

    def nvmlDeviceGetPowerUsage(self, handle: SimulatedGpu) -> int:
        return int(answer(handle, "power", lambda: 245_040))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimulatedGpu) -> int:
        return int(answer(handle, "energy", lambda: handle.millijoules))

    def nvmlDeviceGetClockInfo(self, handle: SimulatedGpu, kind: int) -> int:
        clocks = {pynvml.NVML_CLOCK_GRAPHICS: 1_410, pynvml.NVML_CLOCK_MEM: 1_512}
        return int(answer(handle, "clocks", lambda: clocks[kind]))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: SimulatedGpu) -> list[object]:
        def listed() -> list[Any]:
            fields = ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId")
            processes = handle.processes.items()
            rows = ((pid, None if mb is None else mb * MIB, NO_SLICE, NO_SLICE) for pid, mb in processes)
            return [pynvml.nvmlFriendlyObject(dict(zip(fields, row, strict=True))) for row in rows]

        result: list[Any] = answer(handle, "processes", listed)
        return result


def answer(handle: SimulatedGpu, field: str, value: Callable[[], Any]) -> Any:
    if field in handle.missing:
        raise pynvml.NVMLError_NotSupported()
    return value()


ROCM_SMI = """{
  "card0": {"Temperature (Sensor edge) (C)": "35.0", "Temperature (Sensor junction) (C)": "38.0",
    "Average Graphics Package Power (W)": "41.0", "mclk clock speed:": "(1600Mhz)", "mclk clock level:": "3",
    "sclk clock speed:": "(500Mhz)", "sclk clock level:": "1", "GPU use (%)": "97",
    "GPU Memory Allocated (VRAM%)": "12",
    "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "8601468928",
    "Card Series": "AMD Instinct MI210", "Card Model": "0x740f"},
  "system": {"Driver version": "6.3.6", "PID2124": "python3, 1, 8589934592, 0, 12"}
}"""
"""`rocm-smi … --json` of ROCm 6 with one MI210 and one process."""
ROCM_SMI_OLD = """{
  "card0": {"Temperature (Sensor junction) (C)": "N/A", "GPU use (%)": "0", "GPU memory use (%)": "3",
    "VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "11030528",
    "Card series": "Radeon RX 6800 XT"},
  "card1": {"Temperature (Sensor edge) (C)": "44.0", "Current Socket Graphics Package Power (W)": "130.0",
    "VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "0", "Card series": "N/A"},
  "system": {"PID77": "python3, 2, 4096, 0, 0"}
}"""
"""Two cards in the words of ROCm 5, some of them without a sensor."""
SYSTEM_PROFILER = """{"SPDisplaysDataType": [{"_name": "Apple M2 Max",
  "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
  "spdisplays_vendor": "sppci_vendor_Apple", "sppci_bus": "spdisplays_builtin", "sppci_cores": "38",
  "sppci_device_type": "spdisplays_gpu", "sppci_model": "Apple M2 Max"}]}"""
"""`system_profiler SPDisplaysDataType -json` of macOS 14."""
