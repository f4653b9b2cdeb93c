"""Checks, plans, runs and scripts as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.api.terminal.text import table


def check_text(result: Any) -> str:
    lines = []
    for one in result.files:
        lines += [f"{one.file}: ok, {one.nodes} nodes, digest {one.digest[:12]}"] if one.ok else []
        lines += [f"{one.file}: {reason['line']}" for reason in one.reasons]
    return "\n".join(lines)


def node_table(nodes: Sequence[Any]) -> list[str]:
    """How the nodes ended, as one text; none where there are no nodes."""
    rows = [(node.id, node.state.value, f"{node.seconds:.1f}", node.message.splitlines()[0] if node.message else "")
            for node in nodes]  # fmt: skip
    return [table(rows, ("node", "state", "seconds", "result"))] if rows else []


def run_text(result: Any) -> str:
    return "\n".join([*node_table(result.nodes), f"{result.name}: {result.state.value}. {result.message}", result.url])


def plan_text(result: Any) -> str:
    """Format the plan as a table, then each node's estimate with its basis, then the reasons against a run."""
    header = ("node", "type", "takes", "result", "rows", "steps", "memory", "time")
    lines = [f"chain {result.chain}, digest {result.digest[:12]}, tenant {result.tenant}"]
    lines.append(table([plan_row(node) for node in result.nodes], header))
    lines += [f"{node.id}: {'; '.join(node.estimate.basis)}" for node in result.nodes if node.estimate.basis]
    lines += [f"{node.id}: note: {text}" for node in result.nodes for text in node.advice]
    return "\n".join([*lines, *(refusal["line"] for refusal in result.refusals)])


def plan_row(node: Any) -> list[str]:
    given = node.estimate
    devices = "" if given.devices == 1 else f"{given.devices} x "
    return [
        node.id,
        node.type,
        ", ".join(source for sources in node.takes.values() for source in sources) or "-",
        "reused" if node.reused else "problem" if node.problem else "to make",
        "?" if given.rows is None else f"{given.rows:,}",
        "-" if given.steps is None else f"{given.steps:,}",
        "-" if given.memory_bytes is None else f"{devices}{given.memory_bytes / 2**30:.2f} GiB",
        "-" if given.seconds is None else f"{given.seconds:,.0f} s",
    ]


def eject_text(result: Any) -> str:
    return f"{result.folder}: train.py, spec.json and {result.rows:,} rows\nRun it: {result.command}"
