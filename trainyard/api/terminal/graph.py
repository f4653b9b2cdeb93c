"""The knowledge graph as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.text import table


def query_text(result: Any) -> str:
    if not result.rows:
        return "no rows"
    return table([tuple(str(value) for value in row.values()) for row in result.rows], tuple(result.rows[0]))


def counts_text(result: Any) -> str:
    kinds = [(f"  {name}", f"{count:,}") for name, count in result.entities_by_kind.items()]
    edges = [(f"  {name}", f"{count:,}") for name, count in result.relations_by_kind.items()]
    rows = [("documents", f"{result.documents:,}"), ("entities", f"{result.entities:,}"), *kinds]
    return "\n".join(
        f"{name:<24}{count:>12}" for name, count in [*rows, ("relations", f"{result.relations:,}"), *edges]
    )


def exported_text(result: Any) -> str:
    return f"{result.file}: {result.lines:,} lines"
