"""Values of tables as JSON has them: what Arrow, databases and text columns hand over in types of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from trainyard.data.formats.strict import strict_text
from trainyard.data.quarantine import BadRow

LIST_OF_OBJECTS = re.compile(r"\s*\[\s*\{")
OBJECT = re.compile(r"\s*\{")
TEXT_COLUMNS = frozenset({"text", "system", "system_prompt", "context", "title"})
"""Columns that are texts whatever they begin with."""
ALPACA_TEXTS = frozenset({"instruction", "input", "output"})
ANSWER_COLUMNS = frozenset({"chosen", "rejected"})
"""Columns in which one turn may be an object."""


def text_columns(names: Collection[str]) -> frozenset[str]:
    """Return the columns of a table that are texts in every row; in Alpaca's shape these are its three."""
    return TEXT_COLUMNS | ALPACA_TEXTS if {"instruction", "output"} <= set(names) else TEXT_COLUMNS


def cell_value(name: str, text: str, texts: Collection[str]) -> Any:
    """The turns that a cell contains as JSON text, else the text itself. `texts` are columns that are never turns.

    Columns of lists, such as messages and tools, are read as JSON by their shape, in every type of file.
    """
    begins = LIST_OF_OBJECTS.match(text) or (name in ANSWER_COLUMNS and OBJECT.match(text))
    if not begins or name in texts:
        return text
    try:
        value = strict_text(text)
    except BadRow:
        return text
    turns = value if isinstance(value, list) else [value]
    return value if all(map(is_turn, turns)) else text


def row_values(row: Mapping[str, object], texts: Collection[str]) -> dict[str, object]:
    """Return the row of a query as JSON has it, without its nulls."""
    values = {key: to_json_value(value) for key, value in row.items() if value is not None}
    return {key: cell_value(key, value, texts) if isinstance(value, str) else value for key, value in values.items()}


def is_turn(value: object) -> bool:
    return isinstance(value, dict) and ({"role", "content"} <= value.keys() or {"from", "value"} <= value.keys())


def to_json_value(value: Any) -> Any:
    """Return a value as JSON has it: a decimal is a number, a date or another type its text."""
    if isinstance(value, dict):
        return {key: to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value if isinstance(value, str | int | float | bool | None) else str(value)
