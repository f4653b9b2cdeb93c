"""GPUs by the vendor's command: AMD's `rocm-smi --json`, and Apple's `system_profiler -json`.

Neither needs an administrator. Apple's `powermetrics` would, and so load, temperature and power of its GPUs are not
known; their memory is the machine's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import orjson
import psutil

from trainyard.cancellation import run_process
from trainyard.compute.gpus import MIB
from trainyard.compute.monitor.readings import NO_GPU, OK, Clocks, GpuReading, MonitorReading, ProcessMemory
from trainyard.inherited import child_environment
from trainyard.json_types import JsonMapping

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
    """Return the names of a Mac's GPUs, asked for once: it takes a second."""
    displays = orjson.loads(run(PROFILER))["SPDisplaysDataType"]
    return tuple(str(display.get("sppci_model") or display["_name"]) for display in displays)
