"""GPUs, processors and memory of this machine. The text and the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainyard.operations.base import Nothing
from trainyard.operations.table import Operation, Scope
from trainyard.operations.tables import format_table

if TYPE_CHECKING:
    from trainyard.app.gpus import GpuList


def gpus_text(result: GpuList) -> str:
    """Return one line per GPU, then the memory of each job on it."""
    used = [f"device {device.device}: {device.text}" for device in result.devices if device.text]
    if not result.gpus:
        return "\n".join([str(result.state), *used, *machine_lines(result.machine)])
    rows = [
        (
            str(gpu.index),
            gpu.name,
            f"{gpu.memory_used_mb:,} / {gpu.memory_total_mb:,}",
            format_value(gpu.utilization_gpu, "%"),
            format_value(gpu.temperature_c, " °C"),
            format_value(gpu.power_draw_w, " W"),
            format_value(gpu.clock_graphics_mhz, " MHz"),
        )
        for gpu in result.gpus
    ]
    lines = [format_table(rows, ("gpu", "name", "MiB used", "load", "temperature", "power", "clock"))]
    for gpu in result.gpus:
        for process in gpu.processes:
            lines.append(
                f"gpu {gpu.index}: {process.job or 'no job'}, {format_value(process.memory_mb, ' MiB')}, "
                f"pids {list(process.pids)}"
            )
    versions = {"driver": result.driver_version, "CUDA": result.cuda_version}
    lines += [f"{name} {version}" for name, version in versions.items() if version]
    return "\n".join([*lines, *used, *machine_lines(result.machine)])


def machine_lines(machine: Any) -> list[str]:
    """Return the load of the processors and the memory, then the memory of each job."""
    if machine is None:
        return []
    lines = [
        f"{machine.processors} processors, load {machine.load_1:g} (1 min) {machine.load_5:g} (5 min)",
        f"memory: {machine.memory_used_mb:,} of {machine.memory_total_mb:,} MiB used",
    ]
    return lines + [f"  {job.job}: {job.memory_mb:,} MiB, {job.processes} processes" for job in machine.jobs]


def format_value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,}{unit}"


ROWS: dict[str, Operation] = {
    "gpus": Operation(
        "The GPUs of this machine: memory, load, temperature, power, clocks, and the memory of each job.",
        request=Nothing, run="app.gpus:show_gpus", text=gpus_text, scope=Scope.READ,
        route="GET /api/v1/gpus", tenants=True,
    ),
}  # fmt: skip
"""Name -> row, in the order of the help."""
