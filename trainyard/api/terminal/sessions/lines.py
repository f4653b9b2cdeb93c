"""Sessions and what their verbs reply, as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.tables import table

FACTS = ("session", "op_seq", "verb", "state")
MOST_CHARS = 60


def sessions_text(result: Any) -> str:
    rows = [
        [
            one.id,
            one.name,
            one.state.value,
            str(one.stage.value),
            number(one.global_step),
            number(one.op_seq),
            one.detail[:MOST_CHARS],
        ]
        for one in result.sessions
    ]
    return table(rows, ("id", "name", "state", "stage", "step", "op", "detail")) if rows else "no sessions yet"


def session_text(result: Any) -> str:
    """One session in a few lines, with what can be done next."""
    detail = f" ({result.detail})" if result.detail else ""
    lines = [
        f"{result.name} ({result.id}): {result.state.value}{detail}",
        f"stage {result.stage.value}, method {result.method.value}, base {result.base_model}",
    ]
    if result.op_seq is not None:
        saved = number(result.saved_op_seq)
        lines.append(f"step {number(result.global_step)}, operation {result.op_seq}, saved up to {saved}")
    if result.state.value in ("ended", "failed", "lost"):
        lines.append(f"Continue it by `trainyard sessions resume {result.id}`.")
    return "\n".join(lines)


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def reply_text(result: Any) -> str:
    """An operation in one line, then each of its fields that has a value."""
    lines = [f"{result.verb} {result.op_seq}: {result.state}"]
    for name, value in result.model_dump(mode="json").items():
        if name not in FACTS and value not in (None, {}, []):
            lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def completions_text(result: Any) -> str:
    """What was generated, one completion after another."""
    if not result.completions:
        return reply_text(result)
    return "\n".join(f"[{one.prompt}] {one.text}" for one in result.completions)


def output_text(result: Any) -> str:
    return str(result.path)
