"""Shared readings of every GPU of this machine, at most one every two seconds.

NVIDIA's by NVML, AMD's by `rocm-smi`, Apple's by `system_profiler`; the first that finds one answers. A value that a
device does not report is None. "No GPU" is a state like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

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
