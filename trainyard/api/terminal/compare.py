"""A comparison of two trainings as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.plots import draw_curves
from trainyard.api.terminal.text import table

LONGEST = 44
"""Characters of a setting's value in the table; `--json` has all of it."""


def comparison_text(result: Any) -> str:
    """Settings that differ, then metrics, benchmarks, answers and, if wanted, the curves."""
    first, second = names = [f"{side.run[:8]}/{side.trainer}" for side in result.sides]
    sides = [[name, one.name, one.state, one.adapter_sha256] for name, one in zip(names, result.sides, strict=True)]
    parts = [table(sides, ("training", "run", "state", "adapter"))]
    rows = [[one.name, cell(one.first), cell(one.second)] for one in result.settings]
    parts.append(table(rows, ("setting", first, second)) if rows else "No setting differs.")
    parts.append(table([[one.name, cell(one.first), cell(one.second)] for one in result.metrics],
                       ("metric", first, second)))  # fmt: skip
    if result.benchmarks:
        parts.append(table([benchmark_row(one) for one in result.benchmarks],
                           ("benchmark", first, second, "improvement", "better / worse / rows")))  # fmt: skip
    else:
        parts.append("No benchmark is in the reports of both.")
    for one in result.samples:
        parts.append(f"prompt: {one.prompt}\nright answer: {one.gold}\n{first}: {one.first}\n{second}: {one.second}")
    drawn = {name: side.curve for name, side in zip(names, result.sides, strict=True) if side.curve}
    if result.plot:
        parts.append(draw_curves(drawn) if drawn else "Neither has a curve: their trainings ran elsewhere.")
    return "\n\n".join(parts)


def benchmark_row(one: Any) -> list[str]:
    interval = "" if one.low is None else f" [{one.low:+.4f}, {one.high:+.4f}]"
    gain = "not paired: other rows" if one.improvement is None else f"{one.improvement:+.4f}{interval}"
    counts = f"{one.better} / {one.worse} / {one.rows}"
    return [f"{one.name} ({one.metric})", f"{one.first:.4f}", f"{one.second:.4f}", gain, counts]


def cell(value: Any) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
