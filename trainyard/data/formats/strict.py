"""JSON as RFC 8259 means it: no NaN, no key twice, no overflow; and the fault of a text that is not JSON, in words."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

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
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise BadRow("duplicate_key", f"the key {twice[:40]!r} occurs twice")
    return record


STRICT = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique_keys)
"""Made once: `json.loads` with hooks makes one for each line."""
