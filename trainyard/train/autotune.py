"""The memory that a training could take now, for `choose` of `trainyard.spec.estimate.cascade`.

The arithmetic is in `spec`, where a plan can use it without torch; here is what only a machine can say.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from trainyard.spec.axes.devices import Device

CGROUP = Path("/sys/fs/cgroup")
"""Limits of the container that this process runs in (version 2), where there is one."""


def free_bytes(device: Device, cgroup: Path = CGROUP) -> int:
    """Bytes that a training could take now: of the current GPU on CUDA, of the machine or its container elsewhere.

    On CUDA, memory that this process has allocated is not free; the other devices share the memory of the machine.
    """
    if device.facts.is_gpu:
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    available = int(psutil.virtual_memory().available)
    limit = container_bytes(cgroup)
    return available if limit is None else min(available, limit)


def container_bytes(cgroup: Path) -> int | None:
    """Bytes below the container's limit; None without a limit."""
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if not limit.is_file() or not used.is_file() or (text := limit.read_text().strip()) == "max":
        return None
    return max(0, int(text) - int(used.read_text()))
