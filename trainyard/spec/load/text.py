"""YAML or JSON text to a plain value, safely: no code, no aliases, no surprise types, and caps on size and depth.

YAML is read in one pass over libyaml's events, so that depth, size and aliases are judged before anything is built.
Scalars follow the YAML 1.2 core schema: `2e-4` is a number, `no` and `on` are texts, and a date is a text.
Every refusal is a `Refused` with one reason, whose field says the line.

The caps on what a spec may ask of us, in one place. Over a cap is an error with its number, never a truncation.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import yaml

from trainyard.errors import Reason, Refused
from trainyard.json_types import JsonObject

MAX_SPEC_BYTES = 2 * 1024 * 1024
"""Size of a chain or job file. 10,000 nodes with their ids and a few settings are about 1.2 MB."""
MAX_DEPTH = 64
"""Levels of nesting in a file; the deepest field of a chain is at level 8."""
MAX_VALUES = 200_000
"""Keys, items and scalars in a file; 10,000 nodes with fifteen values each fit."""
MAX_KEYS = 1_000
"""Keys of one mapping; the largest that means something is the list of properties in a JSON schema."""
MAX_REASONS = 100
"""Reasons that are listed one by one; the others are counted."""
MAX_INTEGER_DIGITS = 100
"""Longer numbers are a mistake or an attack: converting digits to an integer is quadratic."""


INTEGER = re.compile(r"[-+]?[0-9]+\Z")
OCTAL_OR_HEX = re.compile(r"0(o[0-7]+|x[0-9a-fA-F]+)\Z")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
NOT_FINITE = re.compile(r"[-+]?(\.inf|\.Inf|\.INF|\.nan|\.NaN|\.NAN|nan|NaN|inf|Infinity)\Z")
WORDS: JsonObject = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
JSON_START = re.compile(r'\[|\{\s*["}]')
"""A flow mapping of YAML starts with a brace too, but the first key of JSON is quoted."""
JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]|[,:]', re.DOTALL)
PLAIN_TAGS = (None, "!", "tag:yaml.org,2002:str")


def refuse(where: str, because: str, instead: str) -> Refused:
    return Refused([Reason("E-SPEC-SYNTAX", None, where, because, instead)], "The file cannot be read as a spec.")


def parse_text(data: bytes | str, *, max_bytes: int = MAX_SPEC_BYTES) -> Any:
    """Return the plain value (mappings, lists, texts, finite numbers, booleans, null) of a YAML or JSON text.

    Raises `Refused` with one of `E-SPEC-SYNTAX`, `-ENCODING`, `-CHARACTER`, `-SYNTAX`, `-ALIAS`, `-TAG`, `-DUPLICATE`,
    `-NUMBER`, `-DEPTH`, `-EMPTY`.
    """
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        because = f"The file has {size:,} bytes; at most {max_bytes:,} are read."
        raise refuse("", because, "Put data into a data set and name its path.")
    text = (decode_text(data) if isinstance(data, bytes) else data).removeprefix("\ufeff")
    check_text(text, located=True)
    stripped = text.lstrip()
    if not stripped:
        raise refuse("", "The file is empty.", "Write a chain: `nodes:` with a list of nodes.")
    return from_json(text) if JSON_START.match(stripped) else from_yaml(text)


def decode_text(data: bytes) -> str:
    """UTF-8, with or without a byte order mark. Anything else is refused rather than guessed."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refuse("", "The file is UTF-16 or UTF-32.", "Save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(f"byte {error.start}", f"The file is not UTF-8: {error.reason}.", "Save it as UTF-8.") from error


# JSON


def from_json(text: str) -> Any:
    check_json_size(text)
    try:
        value = json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=refuse_constant, parse_float=finite, parse_int=integer
        )
    except json.JSONDecodeError as error:
        raise refuse(
            f"line {error.lineno}", f"This is not JSON: {error.msg}.", "Correct the JSON at that line."
        ) from error
    check_texts(value)
    return value


def check_json_size(text: str) -> None:
    """Depth and number of values, before the parser recurses."""
    depth = values = 0
    for match in JSON_PIECE.finditer(text):
        first = match.group()[0]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise depth_error(f"line {text.count(chr(10), 0, match.start()) + 1}")
        elif first in "]}":
            depth -= 1
        values += first in "[{,:"
        if values > MAX_VALUES:
            raise size_error()


def unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise duplicate_key(next(key for key, count in counts.items() if count > 1))
    return mapping


def refuse_constant(text: str) -> Any:
    raise not_finite_error(text)


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise not_finite_error(text)
    return value


def integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise refuse("", f"A number has {len(text):,} digits.", f"Write at most {MAX_INTEGER_DIGITS} digits.")
    return int(text)


# YAML


def from_yaml(text: str) -> Any:
    """Return one pass over the events."""
    building = Building()
    for event in events(text):
        try:
            building.take(event)
        except Refused as refused:
            (reason,) = refused.reasons
            raise refuse(f"line {event.start_mark.line + 1}", reason.because, reason.instead) from None
    documents = building.root.value
    if len(documents) > 1:
        raise refuse("", f"The file contains {len(documents)} documents.", "Write one document a file.")
    return documents[0] if documents else None


def events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        where = f"line {mark.line + 1}" if mark else ""
        raise refuse(where, f"This is not YAML: {problem}.", "Correct the YAML at that line.") from error


class Building:
    """The value under construction: the containers that are open, outermost first."""

    def __init__(self) -> None:
        self.root = Container([])
        self.open = [self.root]
        self.values = 0

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.AliasEvent) or event.anchor:
                because = "The file uses an anchor or an alias of YAML."
                raise refuse("", because, "Write the value out in full.")
            self.values += 1
            if self.values > MAX_VALUES:
                raise size_error()
            self.take_value(event)

    def take_value(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self.open[-1].add(scalar(event))
            return
        if event.tag not in (None, "!"):
            raise tag_error(event.tag)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.open[-1].add(value)
        self.open.append(Container(value))
        if len(self.open) - 1 > MAX_DEPTH:
            raise depth_error("")


class Container:
    """A list or a mapping that is being filled."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key: str | None = None

    def add(self, value: Any) -> None:
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is None:
            if isinstance(value, list | dict) or value is None:
                raise refuse("", "A key is not a text.", "Write texts as keys.")
            self.key = value if isinstance(value, str) else json.dumps(value)
            if self.key in self.value:
                raise duplicate_key(self.key)
        else:
            self.value[self.key] = value
            self.key = None


def scalar(event: yaml.ScalarEvent) -> Any:
    """Return the value of a scalar by the YAML 1.2 core schema; a quoted one is a text."""
    if event.tag not in PLAIN_TAGS:
        raise tag_error(str(event.tag))
    text: str = event.value
    if event.style or event.tag:
        check_text(text)
        return text
    if text in WORDS:
        return WORDS[text]
    if INTEGER.match(text):
        return integer(text)
    if OCTAL_OR_HEX.match(text):
        return int(text, 0)
    if FLOAT.match(text):
        return finite(text)
    if NOT_FINITE.match(text):
        raise not_finite_error(text)
    return text


# Shared


def check_texts(value: Any) -> None:
    """Refuse escapes in JSON that spell what the text itself may not contain."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            check_text(current)
        elif isinstance(current, list):
            pending += current
        elif isinstance(current, dict):
            pending += [*current.keys(), *current.values()]


def check_text(text: str, *, located: bool = False) -> None:
    """Refuse NUL and lone surrogates, which no store and no terminal takes; `located` names the line."""
    for index, character in enumerate(text) if not text.isprintable() else ():
        if character == "\0" or "\ud800" <= character <= "\udfff":
            where = f"line {text.count(chr(10), 0, index) + 1}" if located else ""
            name = "a NUL character" if character == "\0" else f"a lone surrogate (U+{ord(character):04X})"
            raise refuse(where, f"The text contains {name}.", "Remove it; texts are Unicode without NUL.")


def depth_error(where: str) -> Refused:
    return refuse(where, f"The file is nested deeper than {MAX_DEPTH} levels.", "A chain needs about eight levels.")


def size_error() -> Refused:
    because = f"The file contains more than {MAX_VALUES:,} values."
    return refuse("", because, "Put data into a data set and name its path.")


def duplicate_key(key: str) -> Refused:
    return refuse("", f"The key {key!r} is written twice.", "Keep one of the two.")


def not_finite_error(text: str) -> Refused:
    return refuse("", f"{text} is not a finite number.", "Write a finite number.")


def tag_error(tag: str) -> Refused:
    return refuse("", f"The file uses the YAML tag {tag!r}.", "Remove the tag; specs are data only.")
