"""Drafts of chains, and the nodes of runs, as text."""

from __future__ import annotations

import time
from typing import Any

from trainyard.api.terminal.tables import table
from trainyard.api.terminal.text import message_text, short_reason

LONGEST = 60


def palette_text(result: Any) -> str:
    rows = [(one.type, one.text) for one in result.nodes]
    ports = [(one.port.value, one.group) for one in result.ports]
    return "\n\n".join([table(rows, ("node", "what it does")), table(ports, ("port", "group"))])


def expanded_text(result: Any) -> str:
    """The chain as a file has it, with what is wrong with it as comments."""
    lines = [f"# {line}" for reason in result.check.reasons for line in reason["line"].splitlines()]
    return "\n".join([*lines, result.text.rstrip()])


def links_text(result: Any) -> str:
    rows = [
        (f"{result.node}.{one.port.value}", one.target, "linked" if one.linked else "yes" if one.allowed else "no",
         f"{one.code}: {one.because} Instead: {one.instead}" if one.code else "")
        for one in result.links
    ]  # fmt: skip
    return table(rows, ("from", "to", "may be linked", "why not")) if rows else f"{result.node} leads nowhere."


def difference_text(result: Any) -> str:
    rows = [(one.name, shown(one.before), shown(one.after)) for one in result.changes]
    header = ("setting", f"revision {result.before}", f"revision {result.after}")
    return table(rows, header) if rows else f"{result.name}: the revisions do not differ."


def shown(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def nodes_text(result: Any) -> str:
    rows = [
        (one.id, one.type, one.state.value, "-" if one.fraction is None else f"{one.fraction:.0%}",
         f"{one.seconds:.1f}", short_reason(one.message))
        for one in result.nodes
    ]  # fmt: skip
    head = message_text(f"{result.name} ({result.id}): {result.state.value}. {result.message}")
    return "\n".join([head, table(rows, ("node", "type", "state", "done", "seconds", "result"))]) if rows else head


def node_text(result: Any) -> str:
    lines = [message_text(f"{result.id} ({result.type}): {result.state.value}.\n{result.message}".rstrip())]
    lines += [f"{port.value}: {one.rows if one.rows is not None else '-'} rows, {one.bytes:,} bytes, {one.uri}"
              for port, one in result.outputs.items()]  # fmt: skip
    lines += [f"{time.strftime('%H:%M:%S', time.localtime(one.time))} {one.text}" for one in result.lines]
    return "\n".join(lines)
