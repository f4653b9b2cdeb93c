"""Shared readings of every GPU of this machine, at most one every two seconds.

NVIDIA's by NVML, AMD's by `rocm-smi`, Apple's by `system_profiler`; the first that finds one answers. A value that a
device does not report is None. "No GPU" is a state like any other.

NVIDIA's GPUs by NVML: https://docs.nvidia.com/deploy/nvml-api (nvidia-ml-py).

GPUs by the vendor's command: AMD's `rocm-smi --json`, and Apple's `system_profiler -json`.

Neither needs an administrator. Apple's `powermetrics` would, and so load, temperature and power of its GPUs are not
known; their memory is the machine's.

What a process has had of the processor, next to the programs that wanted it, too (Linux).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import orjson
import psutil

from trainyard.cancellation import run_process
from trainyard.compute.gpus import MIB, import_nvml
from trainyard.inherited import child_environment
from trainyard.json_types import JsonMapping

OK, NO_GPU = "ok", "no GPU"
EVERY_S = 2.0


@dataclass(frozen=True)
class ProcessMemory:
    """A process on a GPU."""

    pid: int
    memory_mb: int | None
    """None where the driver does not say, as in a container of another user."""


@dataclass(frozen=True)
class Clocks:
    graphics_mhz: int | None = None
    memory_mhz: int | None = None


@dataclass(frozen=True)
class GpuReading:
    """A reading of one GPU."""

    index: int
    name: str
    memory_total_mb: int
    memory_used_mb: int
    utilization_gpu: int | None = None
    """Percent of the last sampling period in which a kernel ran."""
    utilization_memory: int | None = None
    temperature_c: int | None = None
    power_draw_w: float | None = None
    clocks: Clocks = Clocks()
    processes: tuple[ProcessMemory, ...] = ()

    @property
    def memory_free_mb(self) -> int:
        """Return the unused memory. A driver's own number leaves out what it reserves, and would not add up."""
        return self.memory_total_mb - self.memory_used_mb


@dataclass(frozen=True)
class MonitorReading:
    """All GPUs, or why there are none."""

    state: str
    """`OK`, `NO_GPU`, or the words of the tool that could not read them."""
    gpus: tuple[GpuReading, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None


Source = Callable[[], MonitorReading | None]
"""Reads the GPUs of one vendor; None where this machine has nothing of that vendor's."""


class GpuMonitor:
    """The last look, shared by all threads that ask."""

    def __init__(self, sources: tuple[Source, ...], now: Callable[[], float] = time.monotonic) -> None:
        self.sources, self.now = sources, now
        self.lock = Lock()
        self.taken_at, self.last = float("-inf"), MonitorReading(NO_GPU)

    def read(self) -> MonitorReading:
        """Return the GPUs, as they were at most two seconds ago."""
        with self.lock:
            if self.now() - self.taken_at >= EVERY_S:
                readings = (reading for source in self.sources if (reading := source()) is not None)
                self.last = next(readings, MonitorReading(NO_GPU))
                self.taken_at = self.now()
            return self.last


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


ROCM = (
    "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuse", "--showmemuse", "--showtemp", "--showpower",
    "--showclocks", "--showpids", "--showdriverversion", "--json",
)  # fmt: skip
PROFILER = ("system_profiler", "SPDisplaysDataType", "-json")
WAIT_S = 10.0
CARD, PID = re.compile(r"card(\d+)"), re.compile(r"PID(\d+)")
NAMES = ("Card Series", "Card series", "Card Model", "Card model")
"""Keys of rocm-smi differ between its versions: the first that is there counts."""
TEMPERATURES = ("Temperature (Sensor edge) (C)", "Temperature (Sensor junction) (C)")
POWERS = ("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")
MEMORY_LOADS = ("GPU Memory Allocated (VRAM%)", "GPU memory use (%)")

Run = Callable[[Sequence[str]], bytes]


def run_tool(command: Sequence[str]) -> bytes:
    """Return what a tool prints. Raises `OSError`, `subprocess.SubprocessError`, `CallerLeft`."""
    return run_process(command, timeout_s=WAIT_S, environment=child_environment())


def read_amd(run: Run = run_tool, find: Callable[[str], str | None] = shutil.which) -> MonitorReading | None:
    """Return every AMD GPU; None without `rocm-smi`. Never raises."""
    if find(ROCM[0]) is None:
        return None
    try:
        value = orjson.loads(run(ROCM))
        return amd_reading(value) if isinstance(value, dict) else MonitorReading(NO_GPU)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        return MonitorReading(f"rocm-smi could not be read: {error}")


def amd_reading(value: JsonMapping) -> MonitorReading:
    cards = sorted((int(match[1]), card) for name, card in value.items() if (match := CARD.fullmatch(name)))
    system = value.get("system", {})
    processes = tuple(amd_processes(system)) if len(cards) == 1 else ()  # of several, it does not say which
    gpus = tuple(amd_gpu(index, card, processes) for index, card in cards)
    return MonitorReading(OK if gpus else NO_GPU, gpus, system.get("Driver version"))


def amd_gpu(index: int, card: Mapping[str, str], processes: tuple[ProcessMemory, ...]) -> GpuReading:
    return GpuReading(
        index=index,
        name=find_first(card, NAMES) or f"AMD GPU {index}",
        memory_total_mb=int(card["VRAM Total Memory (B)"]) // MIB,
        memory_used_mb=int(card["VRAM Total Used Memory (B)"]) // MIB,
        utilization_gpu=whole(card.get("GPU use (%)")),
        utilization_memory=whole(find_first(card, MEMORY_LOADS)),
        temperature_c=whole(find_first(card, TEMPERATURES)),
        power_draw_w=parse_number(find_first(card, POWERS)),
        clocks=Clocks(whole(card.get("sclk clock speed:")), whole(card.get("mclk clock speed:"))),
        processes=processes,
    )


def amd_processes(system: Mapping[str, str]) -> Iterator[ProcessMemory]:
    """`"PID2124": "python3, 1, 8589934592, 0, 12"`: name, number of GPUs, bytes, and two more."""
    for name, description in system.items():
        if match := PID.fullmatch(name):
            used = [word.strip() for word in str(description).split(",")]
            yield ProcessMemory(int(match[1]), int(used[2]) // MIB if len(used) > 2 and used[2].isdigit() else None)


def find_first(card: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((card[name] for name in names if card.get(name) not in (None, "", "N/A")), None)


def parse_number(text: str | None) -> float | None:
    """Return the number of `41.0`, `(500Mhz)` or `35 %`."""
    match = re.search(r"\d+(?:\.\d+)?", text or "")
    return float(match[0]) if match else None


def whole(text: str | None) -> int | None:
    number = parse_number(text)
    return None if number is None else round(number)


def read_apple(run: Run = run_tool, system: str = sys.platform) -> MonitorReading | None:
    """Return the GPUs of a Mac, which share its memory; None on another system. Never raises."""
    if system != "darwin":
        return None
    try:
        names = apple_names(run)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        return MonitorReading(f"system_profiler could not be read: {error}")
    machine = psutil.virtual_memory()
    total, used = machine.total // MIB, (machine.total - machine.available) // MIB
    gpus = tuple(GpuReading(index, name, total, used) for index, name in enumerate(names))
    return MonitorReading(OK if gpus else NO_GPU, gpus)


@lru_cache(maxsize=1)
def apple_names(run: Run) -> tuple[str, ...]:
    """Return the names of a Mac's GPUs, cached: the query takes a second."""
    displays = orjson.loads(run(PROFILER))["SPDisplaysDataType"]
    return tuple(str(display.get("sppci_model") or display["_name"]) for display in displays)


LEAST_SHARE = 0.05
"""A smaller share of the processor is not believed."""


class ProcessorTime(NamedTuple):
    """Nanoseconds that the threads of a process computed, and that they waited for a processor."""

    run: int
    wait: int

    def share_since(self, before: ProcessorTime) -> float:
        """Return the computing share of the time since an earlier reading."""
        run, wait = self.run - before.run, self.wait - before.wait
        return max(LEAST_SHARE, run / (run + wait)) if run > 0 and wait >= 0 else 1.0


def read_processor_time(pid: int, proc: Path = Path("/proc")) -> ProcessorTime | None:
    """Return the kernel's counters for the threads of a process; None where it does not, or the process has ended."""
    run = wait = 0
    try:
        for path in (proc / str(pid) / "task").iterdir() if pid else ():
            fields = (path / "schedstat").read_text(encoding="ascii").split()
            run, wait = run + int(fields[0]), wait + int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessorTime(run, wait) if run else None
