"""JSON as RFC 8259 means it: no NaN, no key twice, no overflow; and the fault of a text that is not JSON, in words.

Values of tables as JSON has them: what Arrow, databases and text columns hand over in types of their own.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from trainyard.data.quarantine import BadRow


def strict_json(line: bytes) -> object:
    """Parse one line of JSON. Raises `BadRow` that names the fault."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"byte {error.start} of the row is not UTF-8") from error
    return strict_text(text)


def strict_text(text: str) -> object:
    """Parse one JSON value. Raises `BadRow` that names the fault."""
    try:
        return STRICT.decode(text)
    except RecursionError as error:
        raise BadRow("too_deep", "the row is nested too deeply") from error
    except json.JSONDecodeError as error:
        hint = explain_fault(text)
        raise BadRow("not_json", f"{error.msg} at character {error.pos}" + (f": {hint}" if hint else "")) from error
    except ValueError as error:
        raise BadRow("bad_number", "a number has too many digits") from error


def explain_fault(text: str) -> str:
    """Return what people usually did where a line is not JSON; empty if nothing is recognised."""
    line = text.strip()
    if line in ("{", "["):
        return "the value continues in the next line; name a file of values over many lines .json"
    if line.startswith(("{'", "[{'", "['")):
        return "texts are in single quotes, as Python prints them; write rows by json.dumps"
    if line.startswith(("#", "//")):
        return "the line is a comment, and JSON has none"
    if line.endswith(",") and is_json(line[:-1]):
        return "a comma follows the row; rows of JSON Lines have nothing between them"
    return ""


def is_json(text: str) -> bool:
    try:
        STRICT.decode(text)
    except (BadRow, ValueError, RecursionError):
        return False
    return True


def refuse_constant(name: str) -> NoReturn:
    raise BadRow("not_a_number", f"{name} is not JSON")


def finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadRow("not_a_number", f"{text[:20]} is too large for a number")
    return value


def unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise BadRow("duplicate_key", f"the key {(find_repeated(key for key, _ in pairs) or '')[:40]!r} occurs twice")
    return record


def find_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs more than once; a row could have only one of its values."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


STRICT = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique_keys)
"""Made once: `json.loads` with hooks makes one for each line."""


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
