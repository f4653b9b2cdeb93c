"""The shapes of a data row: one table, from the keys that a row has to the function that normalises it.

A *shape* is one spelling (`chosen` + `rejected`, `messages`, …), a *format* is what a chain names; a format allows
one or more shapes, and `auto` allows all of them. The first shape of the table whose keys a row has is its shape.
Adding one: a function `parse(record) -> Row` that raises `BadRow` and a row in `SHAPES`, both in the module of its
rows, and a test; for a new format, a row in `spec/axes/data.py` too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainyard.data.formats import preferences, supervised
from trainyard.data.formats.converters import RowConverter
from trainyard.data.formats.messages import MEDIA_KEYS, refuse_media, unread_keys
from trainyard.data.formats.supervised import Keys, RowShape
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Row
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import DataFormat

MAX_KINDS = 1000
SHAPES: tuple[RowShape, ...] = (*preferences.SHAPES, *supervised.SHAPES)
BY_NAME = {shape.name: shape for shape in (*SHAPES, supervised.DOCUMENT)}


def allowed_shapes(format: DataFormat) -> tuple[RowShape, ...]:
    """The shapes that the rows of a format may have."""
    return SHAPES if format is DataFormat.AUTO else tuple(one for one in BY_NAME.values() if format in one.formats)


def shape_of(keys: Iterable[str], allowed: tuple[RowShape, ...] = SHAPES) -> RowShape | None:
    present = frozenset(keys)
    return next((shape for shape in allowed if shape.has(present)), None)


@dataclass(frozen=True)
class Detected:
    """What the first rows of a set look like."""

    format: DataFormat
    shape: RowShape
    allowed: tuple[RowShape, ...]
    """Shapes of the format; a row has to have the first of them that its keys allow, and the set's port."""


def detect(sample: Iterable[Any], wanted: DataFormat, where: str) -> Detected:
    """Detect the format from the first rows, or check them against the format that was named.

    Raises `InvalidInput`: `E-DATA-FORMAT` if no row has a known shape, or none has one of the named format.
    """
    records = [record for record in sample if isinstance(record, Mapping)]
    allowed = allowed_shapes(wanted)
    counts = Counter(shape.name for record in records if (shape := shape_of(record, allowed)))
    if not counts:
        raise no_format(records, wanted, where)
    shape = BY_NAME[counts.most_common(1)[0][0]]
    found = shape.formats[0] if wanted is DataFormat.AUTO else wanted
    with_tools = sum("tools" in record or "functions" in record for record in records)
    is_chat = found in (DataFormat.OPENAI, DataFormat.SHAREGPT)
    if is_chat and wanted is DataFormat.AUTO and 2 * with_tools > len(records):
        found = DataFormat.TOOL_CALLS
    return Detected(found, shape, allowed)


def no_format(records: list[Mapping[str, Any]], wanted: DataFormat, where: str) -> InvalidInput:
    keys = sorted({key for record in records for key in record})
    named = ", ".join(key[:40] for key in keys[:12]) or "none (the rows are not objects)"
    likely = Counter(shape.formats[0].value for record in records if (shape := shape_of(record)))
    if wanted is DataFormat.AUTO:
        what = f"The format of {where} is not known."
        do = "Name columns as one of the formats does (docs/formats.md), for example instruction, input and output."
    else:
        what = f"{where} is not in the format {wanted.value}."
        other = likely.most_common(1)[0][0] if likely else "auto"
        do = f"Give format: {other}." if likely else "Correct the file or the format; docs/formats.md shows each."
    return InvalidInput(what, why=f"The first rows have the keys: {named}.", do=do, code="E-DATA-FORMAT")


@dataclass(frozen=True, eq=False)
class Kind:
    """How rows with one set of keys are read. Compared by identity, which makes counting them cheap."""

    shape: RowShape
    ignored: Keys
    media: Keys = frozenset()
    """Keys of pictures, sounds and films: a row in which one is not empty is bad."""


class Normaliser:
    """Turns the records of one set into rows; remembers which keys lead to which shape."""

    def __init__(self, detected: Detected, convert: RowConverter | None = None) -> None:
        self.detected, self.convert = detected, convert
        self.kind = lru_cache(MAX_KINDS)(self.find_kind)
        self.with_ignored = lru_cache(MAX_KINDS)(with_ignored)

    def __call__(self, record: Any) -> tuple[Row, Kind]:
        """The row, and how it was read. Raises `BadRow`, also the one that a parser gives in place of a record."""
        if self.convert is not None:
            record = self.convert(record)
        if isinstance(record, BadRow):
            raise record
        if not isinstance(record, Mapping):
            raise BadRow("not_an_object", "the row is not a JSON object")
        kind = self.kind(frozenset(record))
        if kind.media:
            refuse_media(record, kind.media)
        read = {key: record[key] for key in kind.shape.known & record.keys()}
        row, inside = kind.shape.parse(record), frozenset(unread_keys(read))
        return row, self.with_ignored(kind, inside) if inside else kind

    def find_kind(self, keys: Keys) -> Kind:
        """How a row with these keys is read. Raises `BadRow`."""
        shape = shape_of(keys, self.detected.allowed)
        if shape is not None and shape.port is self.detected.shape.port:
            return Kind(shape, keys - shape.known, (keys & MEDIA_KEYS) - shape.known)
        wanted, other = self.detected.format.value, shape or shape_of(keys)
        if other is not None:
            raise BadRow("other_format", f"the row looks like {other.name}, the set is {wanted}")
        named = ", ".join(sorted(key[:40] for key in keys)[:8]) or "none"
        raise BadRow("missing_fields", f"keys of no {wanted} row: {named}")


def with_ignored(kind: Kind, inside: Keys) -> Kind:
    """The kind of a row whose turns have keys that are ignored, too."""
    return Kind(kind.shape, kind.ignored | inside, kind.media)
