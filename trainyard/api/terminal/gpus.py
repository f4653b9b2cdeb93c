"""GPUs as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.text import table


def gpus_text(result: Any) -> str:
    """One line per GPU, then the memory of each job on it."""
    if not result.gpus:
        return str(result.state)
    rows = [
        (
            str(gpu.index),
            gpu.name,
            f"{gpu.memory_used_mb:,} / {gpu.memory_total_mb:,}",
            shown(gpu.utilization_gpu, "%"),
            shown(gpu.temperature_c, " °C"),
            shown(gpu.power_draw_w, " W"),
            shown(gpu.clock_graphics_mhz, " MHz"),
        )
        for gpu in result.gpus
    ]
    lines = [table(rows, ("gpu", "name", "MiB used", "load", "temperature", "power", "clock"))]
    for gpu in result.gpus:
        for one in gpu.processes:
            lines.append(
                f"gpu {gpu.index}: {one.job or 'no job'}, {shown(one.memory_mb, ' MiB')}, pids {list(one.pids)}"
            )
    versions = {"driver": result.driver_version, "CUDA": result.cuda_version}
    return "\n".join([*lines, *(f"{name} {version}" for name, version in versions.items() if version)])


def shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,}{unit}"
