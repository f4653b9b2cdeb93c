"""Gauges of `/metrics` that are read when Prometheus asks: jobs by state, and the memory of each GPU."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.api.live.found import open_index
from trainyard.api.verbs.monitoring.gpus import MONITOR
from trainyard.settings import Settings
from trainyard.spec.states import JobState

GaugeSample = tuple[str, str, dict[str, str], float]
"""Name, help, labels, value."""
MIB = 1 << 20


def read_jobs(settings: Settings) -> Iterator[GaugeSample]:
    """Jobs of the index by state; zeros for states that none is in."""
    counts = open_index(settings).count_by_state()
    for state in JobState:
        yield "trainyard_jobs", "Jobs by state.", {"state": state.value}, counts.get(state.value, 0)


def read_memory() -> Iterator[GaugeSample]:
    """Used and free memory of each GPU."""
    for gpu in MONITOR.read().gpus:
        for kind, used_mb in (("used", gpu.memory_used_mb), ("free", gpu.memory_free_mb)):
            labels = {"gpu": str(gpu.index), "kind": kind}
            yield "trainyard_gpu_memory_bytes", "Memory of each GPU.", labels, used_mb * MIB
