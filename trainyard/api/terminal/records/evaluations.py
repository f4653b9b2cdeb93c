"""Evaluations as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.records.artifacts import SHORT, when_text
from trainyard.api.terminal.tables import table


def evaluations_text(result: Any) -> str:
    """A line for each evaluation."""
    if not result.evaluations:
        return "no evaluations yet"
    rows = [
        (when_text(one.ended), one.run_id[:SHORT], one.run_name, one.node, verdict_of(one), one.primary,
         interval_words(one.improvement))
        for one in result.evaluations
    ]  # fmt: skip
    more = f"\nmore: --cursor {result.next}" if result.next else ""
    return table(rows, ("ended", "run", "chain", "node", "verdict", "primary", "improvement")) + more


def verdict_of(one: Any) -> str:
    if one.better is None:
        return "removed"
    if one.few_rows:
        return "not enough rows to say"
    return "better" if one.better else "not better"


def interval_words(one: Any) -> str:
    if one is None or one.mean is None:
        return ""
    return f"{one.mean:+.4f}" + ("" if one.low is None else f" [{one.low:+.4f}, {one.high:+.4f}]")


def number_of(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def evaluation_text(result: Any) -> str:
    """The verdict, then a line for each benchmark, then the notes."""
    head = f"{verdict_of(result)}: adapter {result.adapter_sha256[:12]} on {result.base_model}, by {result.primary}"
    head += f", compared with {result.baseline}" + (f" and {result.live}, which is live" if result.live else "")
    rows = [
        (f"{one.name}/{one.set}", f"{one.rows:,}", number_of(one.baseline), number_of(one.candidate),
         interval_words(one.improvement), f"{one.flips.better} / {one.flips.worse} / {one.flips.equal}")
        for one in result.benchmarks
    ]  # fmt: skip
    header = ("benchmark", "rows", "baseline", "candidate", "improvement", "better / worse / equal")
    lines = [head, table(rows, header), *result.gate.reasons, *result.gate.cautions, *result.notes]
    return "\n".join(lines)
