"""Nights and the knowledge graph that they wrote, as text."""

from __future__ import annotations

from typing import Any

from trainyard.api.terminal.tables import table
from trainyard.night.report import markdown


def nights_text(result: Any) -> str:
    """A line for each night."""
    if not result.nights:
        return "no night yet"
    return "\n".join(f"{one.tenant}/{one.night}  {one.state:<10} {one.headline}" for one in result.nights)


def night_detail_text(result: Any) -> str:
    return markdown(result.report).rstrip() if result.report else str(result.headline)


def entities_text(result: Any) -> str:
    if not result.entities:
        return "no such entity"
    rows = [(one.kind, one.name, one.tenant, one.key) for one in result.entities]
    more = "" if result.next_offset is None else f"\nmore: --offset {result.next_offset}"
    return table(rows, ("kind", "name", "tenant", "key")) + more


def neighbors_text(result: Any) -> str:
    """The entity, its relations as arrows, and the documents that name it."""
    one = result.entity
    facts = "".join(f"\n  {name}: {value}" for name, value in one.attributes.items())
    arrows = {"out": "-{}->", "in": "<-{}-"}
    lines = [
        f"  {arrows[each.direction].format(each.kind)} {each.entity.name} ({each.entity.kind}, {each.entity.key})"
        for each in result.relations
    ]
    lines += [f"  in {each.stream}: {', '.join(each.names)}" for each in result.documents]
    return "\n".join([f"{one.name} ({one.kind}){facts}", *lines, *(["  …"] if result.more else [])])
