"""Trainers as text: which there are, whether they resume bit by bit, how they write conversations."""

from __future__ import annotations

import json
from typing import Any

from trainyard.api.terminal.tables import table


def renderers_text(result: Any) -> str:
    """The table, then what is wrong, a line each."""
    kinds = list(result.rows[0].kinds) if result.rows else []
    header = ("renderer", "template", "extends", *kinds, "stop tokens", "sha256")
    rows = [
        (row.renderer, row.template, "yes" if row.extension else "no", *row.kinds.values(), " ".join(row.stops),
         row.sha256[:12])
        for row in result.rows
    ]  # fmt: skip
    return "\n".join([table(rows, header), *(f"{row.template}: {row.problem}" for row in result.rows if row.problem)])


def proof_text(result: Any) -> str:
    header = ("stage", "loss", "method", "mode", "verdict", "weights", "seconds")
    rows = [
        (cell.stage, cell.loss or "", cell.method, cell.mode,
         "identical" if cell.identical else f"DIFFERS: {', '.join(cell.differs)}", cell.sha256["weights"][:12],
         f"{cell.seconds:.1f}")
        for cell in result.cells
    ]  # fmt: skip
    identical = sum(cell.identical for cell in result.cells)
    return f"{table(rows, header)}\n{identical} of {len(result.cells)} identical in {result.seconds:.0f} s"


def backends_text(result: Any) -> str:
    """The table, then a line for each backend that cannot be used."""
    rows = []
    for one in result.rows:
        state = "absent" if not one.available else "ready" if one.fits else "no device"
        rows.append((one.name.value, state, one.version or "-", one.imports, ", ".join(one.devices)))
    notes = [f"{one.name.value}: {one.why} {one.fix}".rstrip() for one in result.rows if one.why]
    notes += [
        f"{one.name.value}: installation {one.installation.state}: {one.installation.lines[-1]}"
        for one in result.rows if one.installation and one.installation.lines
    ]  # fmt: skip
    return "\n".join([table(rows, ("backend", "state", "version", "imports", "computes on")), *notes])


def scripts_text(result: Any) -> str:
    rows = [(one.name, f"{one.bytes:,}", one.sha256[:12]) for one in result.scripts]
    state = "chains may run them" if result.can_run else "switched off: set allow_scripts = true in trainyard.toml"
    return f"{table(rows, ('script', 'bytes', 'sha256'))}\n{result.folder}: {state}"


def script_text(result: Any) -> str:
    return str(result.text).rstrip("\n")


def saved_script_text(result: Any) -> str:
    return f"saved {result.name}: {result.bytes:,} bytes, sha256 {result.sha256[:12]}"


def draft_text(result: Any) -> str:
    """The spec; the script is that of `scripts show`."""
    return f"{result.node}: script {result.script}\n{json.dumps(result.spec, indent=2, ensure_ascii=False)}"


def gpus_text(result: Any) -> str:
    """One line per GPU, then the memory of each job on it."""
    used = [f"device {one.device}: {one.text}" for one in result.devices if one.text]
    if not result.gpus:
        return "\n".join([str(result.state), *used, *machine_lines(result.machine)])
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
    return lines + [f"  {one.job}: {one.memory_mb:,} MiB, {one.processes} processes" for one in machine.jobs]


def shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,}{unit}"
