"""Energy that GPUs take: by NVML's counter, which every GPU since Volta has, else by its power readings.

https://docs.nvidia.com/deploy/nvml-api: `nvmlDeviceGetTotalEnergyConsumption` is in millijoules since the driver was
loaded, `nvmlDeviceGetPowerUsage` in milliwatts. Of several trainings on one GPU each gets the energy of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trainyard.compute.gpus import import_nvml
from trainyard.stores.whole import write_json_durably

MILLI = 1000.0
ENERGY_FILE = "energy.json"
"""Joules of all starts of a training, in its work folder."""


def read_counter(nvml: Any, devices: Sequence[int], name: str) -> float | None:
    """Return the sum of a function of NVML over GPUs, in J or W; None where one of them does not have it."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in devices]
        return sum(getattr(nvml, name)(handle) for handle in handles) / MILLI
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


@dataclass
class EnergyMeter:
    """Energy of some GPUs since it was made; `joules` is None where the driver measures none."""

    devices: Sequence[int]
    clock: Callable[[], float] = time.monotonic
    find: Callable[[], Any] = import_nvml
    joules: float | None = None

    def __post_init__(self) -> None:
        self.nvml = self.find() if self.devices else None
        self.last, self.counter = self.clock(), self.read("nvmlDeviceGetTotalEnergyConsumption")

    def read(self, name: str) -> float | None:
        return None if self.nvml is None else read_counter(self.nvml, self.devices, name)

    def advance(self) -> None:
        """Add the energy since the last reading. A counter that a new driver has set back adds nothing."""
        seconds, self.last = self.clock() - self.last, self.clock()
        counter = self.read("nvmlDeviceGetTotalEnergyConsumption") if self.counter is not None else None
        if counter is not None and self.counter is not None:
            added: float | None = max(0.0, counter - self.counter)
            self.counter = counter
        else:
            watts = self.read("nvmlDeviceGetPowerUsage")
            added = None if watts is None else watts * seconds
        if added is not None:
            self.joules = (self.joules or 0.0) + added


def keep_energy(work: Path, joules: float) -> None:
    """Add the energy of one start to that of a training."""
    write_json_durably(work / ENERGY_FILE, {"joules": read_energy(work) + joules})


def read_energy(work: Path) -> float:
    """Return the joules of the starts of a training so far; 0 where none was measured."""
    path = work / ENERGY_FILE
    return float(orjson.loads(path.read_bytes())["joules"]) if path.is_file() else 0.0
