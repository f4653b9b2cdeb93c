"""Values between the code under test and its assertions: copies of plain data, references to everything else.

A frame is four bytes of length and JSON. Nothing is unpickled: the other side may be hostile. What both sides have (a
class of the standard library) crosses by its name, which the judge resolves from a list only.
"""

from __future__ import annotations

import builtins
import json
import os
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

HEADER = struct.Struct("!I")
MOST_BYTES = 64 << 20
LARGE = 1 << 63
COMMON_MODULES = frozenset(
    (
        "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "dataclasses", "datetime",
        "decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "json.decoder", "math", "numbers",
        "operator", "random", "re", "statistics", "string", "textwrap", "time", "typing",
    )
)  # fmt: skip
"""Modules of the standard library that the code under test may pass to its judge by name, with their classes."""
COMMON_BUILTINS = ("len", "sum", "max", "min", "abs", "sorted", "round", "pow", "divmod")
"""Builtin functions that it may pass, besides types."""
MUTABLE: tuple[type, ...] = (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
Each = Callable[[Any], Any]
"""Packs or unpacks what a container contains."""


class Closed(BaseException):
    """The other process has ended, or sent something else than a message."""


class References:
    """Packer of objects that do not cross by value."""

    def pack_object(self, value: Any) -> Any:
        raise NotImplementedError

    def unpack_object(self, tag: str, content: Any) -> Any:
        raise NotImplementedError


def map_items(value: Any, each: Each) -> Any:
    return [each(item) for item in value]


def map_pairs(value: Any, each: Each) -> Any:
    return [[each(key), each(item)] for key, item in value.items()]


def read_pairs(content: Any, each: Each) -> Any:
    return ((each(key), each(item)) for key, item in content)


PACKERS: dict[type, Callable[[Any, Each], Any]] = {
    int: lambda value, _: hex(value), bytes: lambda value, _: value.hex(), bytearray: lambda value, _: value.hex(),
    complex: lambda value, _: str(value), Decimal: lambda value, _: str(value), Fraction: lambda value, _: str(value),
    date: lambda value, _: value.isoformat(), datetime: lambda value, _: value.isoformat(),
    time: lambda value, _: value.isoformat(),
    timedelta: lambda value, _: [value.days, value.seconds, value.microseconds],
    range: lambda value, each: [each(value.start), each(value.stop), each(value.step)],
    list: map_items, tuple: map_items, set: map_items, frozenset: map_items,
    deque: lambda value, each: [map_items(value, each), value.maxlen],
    dict: map_pairs, OrderedDict: map_pairs, Counter: map_pairs, defaultdict: map_pairs,
}  # fmt: skip
"""Exact types of plain data that cross by content, larger integers included."""
UNPACKERS: dict[str, Callable[[Any, Each], Any]] = {
    "int": lambda text, _: int(text, 16), "bytes": lambda text, _: bytes.fromhex(text),
    "bytearray": lambda text, _: bytearray.fromhex(text), "complex": lambda text, _: complex(text),
    "Decimal": lambda text, _: Decimal(text), "Fraction": lambda text, _: Fraction(text),
    "date": lambda text, _: date.fromisoformat(text), "datetime": lambda text, _: datetime.fromisoformat(text),
    "time": lambda text, _: time.fromisoformat(text), "timedelta": lambda parts, _: timedelta(*parts),
    "range": lambda parts, each: range(*map(each, parts)),
    "list": lambda items, each: [*map(each, items)], "tuple": lambda items, each: tuple(map(each, items)),
    "set": lambda items, each: {*map(each, items)}, "frozenset": lambda items, each: frozenset(map(each, items)),
    "deque": lambda parts, each: deque(map(each, parts[0]), parts[1]),
    "dict": lambda pairs, each: dict(read_pairs(pairs, each)),
    "OrderedDict": lambda pairs, each: OrderedDict(read_pairs(pairs, each)),
    "Counter": lambda pairs, each: Counter(dict(read_pairs(pairs, each))),
    "defaultdict": lambda pairs, each: defaultdict(None, read_pairs(pairs, each)),
}  # fmt: skip
"""The same by their tags."""


def pack(value: Any, references: References) -> Any:
    """Return the JSON of a value: plain data by content, of the exact types only, everything else by a reference."""
    kind = type(value)
    if value is None or kind in (bool, str, float) or (kind is int and -LARGE < value < LARGE):
        return value
    if kind not in PACKERS:
        return references.pack_object(value)
    return {kind.__name__: PACKERS[kind](value, lambda item: pack(item, references))}


def unpack(content: Any, references: References) -> Any:
    """Return the value of JSON that `pack` has made. Raises `Closed` for anything else."""
    if not isinstance(content, dict | list):
        return content
    try:
        ((tag, inner),) = content.items()  # type: ignore[union-attr]
        if tag in UNPACKERS:
            return UNPACKERS[tag](inner, lambda item: unpack(item, references))
    except (AttributeError, TypeError, ValueError, ArithmeticError, IndexError) as error:
        raise Closed from error
    return references.unpack_object(tag, inner)


def standard_name(value: Any) -> list[str] | None:
    """[module, name] of a module, class or function of the standard library; None for everything else."""
    if isinstance(value, ModuleType):
        name = value.__name__
        return [name, ""] if name in sys.stdlib_module_names and sys.modules.get(name) is value else None
    if not isinstance(value, type | BuiltinFunctionType | FunctionType):
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    top = module.partition(".")[0] if isinstance(module, str) else ""
    if top not in sys.stdlib_module_names or module not in sys.modules:
        return None
    return [module, name] if getattr(sys.modules[module], name, None) is value else None


def find_standard(module: str, name: str) -> Any:
    """Return the module, class or function of a name, of the list of `COMMON_MODULES` and harmless builtins."""
    if module == "builtins":
        value = getattr(builtins, name, None)
        if isinstance(value, type) or name in COMMON_BUILTINS:
            return value
    elif module in COMMON_MODULES:
        __import__(module)
        value = sys.modules[module] if not name else getattr(sys.modules[module], name, None)
        if value is not None and standard_name(value) == [module, name]:
            return value
    raise Closed


def write_message(descriptor: int, message: Any) -> None:
    """Send one message. Raises `Closed` when the reader is gone."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MOST_BYTES:
        raise OverflowError(f"a value takes more than {MOST_BYTES:,} bytes")
    data = memoryview(HEADER.pack(len(payload)) + payload)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise Closed from error


def read_message(descriptor: int) -> Any:
    """Receive one message. Raises `Closed`."""
    (length,) = HEADER.unpack(read_exactly(descriptor, HEADER.size))
    if length > MOST_BYTES:
        raise Closed
    try:
        return json.loads(read_exactly(descriptor, length))
    except (ValueError, RecursionError) as error:
        raise Closed from error


def read_exactly(descriptor: int, length: int) -> bytes:
    """So many bytes. Raises `Closed` at an earlier end."""
    parts = []
    while length:
        try:
            block = os.read(descriptor, min(length, 1 << 20))
        except OSError as error:
            raise Closed from error
        if not block:
            raise Closed
        parts.append(block)
        length -= len(block)
    return b"".join(parts)
