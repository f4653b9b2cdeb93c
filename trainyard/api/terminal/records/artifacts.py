"""Results of runs as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from trainyard.api.terminal.tables import table

SHORT = 8


def when_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def artifacts_text(result: Any) -> str:
    """A line for each result."""
    if not result.artifacts:
        return "no results yet"
    rows = [
        (when_text(one.ended), one.run_id[:SHORT], one.run_name, one.node, one.port.value,
         "" if one.rows is None else f"{one.rows:,}", f"{one.bytes:,}", state_of(one))
        for one in result.artifacts
    ]  # fmt: skip
    more = f"\nmore: --cursor {result.next}" if result.next else ""
    return table(rows, ("ended", "run", "chain", "node", "port", "rows", "bytes", "")) + more


def state_of(one: Any) -> str:
    if one.problem:
        return "cannot be read"
    return ("reused" if one.reused else "") if one.available else "removed"


def rows_text(result: Any) -> str:
    """Each row as a line of JSON, so that it can be piped; then how to continue."""
    lines = [json.dumps(row.values, ensure_ascii=False) for row in result.rows]
    reasons = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in result.reasons.items())
    head = f"{result.part} of {result.node}/{result.port.value}: {result.total:,} rows"
    lines.insert(0, f"{head} ({reasons})" if reasons else head)
    if result.next_offset is not None:
        lines.append(f"more: --offset {result.next_offset}")
    return "\n".join(lines)
