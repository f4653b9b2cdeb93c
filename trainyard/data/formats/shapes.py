"""The shapes of a data row: one table, from the keys that a row has to the function that normalises it.

A *shape* is one spelling (`chosen` + `rejected`, `messages`, …), a *format* is what a chain names; a format allows
one or more shapes, and `auto` allows all of them. The first shape of the table whose keys a row has is its shape.
Adding one: a function `parse(record) -> Row` that raises `BadRow` and a row in `SHAPES`, both in the module of its
rows, and a test; for a new format, a row in `spec/axes/data.py` too.

Columns under other names: `columns: {prompt: frage, completion: antwort}` of a data source.

A mapped column is read under the name of its field. A column that is not mapped and has a name that some shape reads is
not read: it counts as an ignored key. `tools: tools` reads an optional field under its own name where a row has it.
"""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from trainyard.data.formats import preferences, prompted, supervised
from trainyard.data.formats.messages import MEDIA_KEYS, SYSTEM_KEYS, refuse_media
from trainyard.data.formats.prompted import QUESTION_KEYS
from trainyard.data.formats.records import Record
from trainyard.data.formats.supervised import Keys, RowShape
from trainyard.data.functions import RowConverter
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Row
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.data import COLUMN_FIELDS, DataFormat, Port

MAX_KINDS = 1000
SHAPES: tuple[RowShape, ...] = (*preferences.SHAPES, *supervised.SHAPES, *prompted.SHAPES)
BY_NAME = {shape.name: shape for shape in (*SHAPES, supervised.DOCUMENT, prompted.NAMED)}

COLUMN_NAMES = frozenset(
    {
        *(name for pair in supervised.PAIRS for name in pair), *supervised.ADDED_KEYS, *preferences.PROMPT_KEYS,
        *preferences.LABEL_KEYS, *prompted.ANSWER_KEYS, *prompted.OTHER_ROWS, *SYSTEM_KEYS, "history", "steps",
        "tools", "functions",
    }
)  # fmt: skip
"""Names that shapes read, which a header of a table may write in any case."""


def list_shapes(format: DataFormat) -> tuple[RowShape, ...]:
    """Return the shapes that the rows of a format may have."""
    return (
        SHAPES if format is DataFormat.AUTO else tuple(shape for shape in BY_NAME.values() if format in shape.formats)
    )


def find_shape(keys: Iterable[str], allowed: tuple[RowShape, ...] = SHAPES) -> RowShape | None:
    present = frozenset(keys)
    return next((shape for shape in allowed if shape.has(present)), None)


def shape_of_record(record: Mapping[str, object], allowed: tuple[RowShape, ...] = SHAPES) -> RowShape | None:
    """Return the shape of a row, in which a key with null counts as absent where the row has a shape without it."""
    shape = find_shape(record, allowed)
    if shape is None or None not in record.values():
        return shape
    present = frozenset(key for key, value in record.items() if value is not None)
    if shape.has(present):
        return shape
    other = find_shape(present, allowed)
    return shape if other is None or other.port is Port.PROMPTS else other


@dataclass(frozen=True)
class Detected:
    """Shape of the first rows of a set."""

    format: DataFormat
    shape: RowShape
    allowed: tuple[RowShape, ...]
    """Shapes of the format; a row has to have the first of them that its keys allow, and the set's port."""


def detect(sample: Iterable[object], data_format: DataFormat, where: str) -> Detected:
    """Detect the format from the first rows, or check them against the format that was named.

    Raises `InvalidInput`: `E-DATA-FORMAT` if no row has a known shape, or none has one of the named format.
    """
    records = [record for record in sample if isinstance(record, Mapping)]
    allowed = list_shapes(data_format)
    counts = Counter(shape.name for record in records if (shape := shape_of_record(record, allowed)))
    if not counts:
        raise format_error(records, data_format, where)
    shape = BY_NAME[counts.most_common(1)[0][0]]
    detected = shape.formats[0] if data_format is DataFormat.AUTO else data_format
    with_tools = sum("tools" in record or "functions" in record for record in records)
    is_chat = detected in (DataFormat.OPENAI, DataFormat.SHAREGPT)
    if is_chat and data_format is DataFormat.AUTO and 2 * with_tools > len(records):
        detected = DataFormat.TOOL_CALLS
    return Detected(detected, shape, allowed)


def format_error(records: list[Mapping[str, object]], data_format: DataFormat, where: str) -> InvalidInput:
    keys = list(dict.fromkeys(str(key) for record in records for key in record))
    named = ", ".join(key[:40] for key in keys[:12]) or "none (the rows are not objects)"
    likely = Counter(shape.formats[0].value for record in records if (shape := find_shape(record)))
    if data_format is DataFormat.AUTO:
        message = f"The format of {where} is not known."
        do = suggest_form(records, keys)
    else:
        message = f"{where} is not in the format {data_format.value}."
        other = likely.most_common(1)[0][0] if likely else "auto"
        do = f"Give format: {other}." if likely else "Correct the file or the format; docs/formats.md shows each."
    return InvalidInput(message, why=f"The first rows have the keys: {named}.", do=do, code="E-DATA-FORMAT")


def suggest_form(records: Sequence[Mapping[str, object]], keys: Sequence[str]) -> str:
    """Return what to do with rows of no known shape: name their columns, or write the rows inside of one of them."""
    nested = (key for record in records for key, value in record.items() if contains_rows(value))
    if len(records) == 1 and (key := next(nested, None)) is not None:
        return f"Write the list under {key[:40]!r} as the file: each of its objects is a row."
    if len(keys) > 1:
        return f"{example_of_columns(keys)}, or name them as one of the formats does (docs/formats.md)."
    return "Write each row as an object with the keys of a format (docs/formats.md), such as prompt and completion."


def contains_rows(value: object) -> bool:
    """Whether a value is a list of objects that have a shape."""
    return (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and find_shape(value[0]) is not None
    )


def example_of_columns(keys: Sequence[str]) -> str:
    """Return how to say what each column is, with the first two columns of the data as the example."""
    prompt, completion = keys[:2]
    spelled = f"dataset.columns.prompt={prompt[:40]}"
    columns = f"{{prompt: {prompt[:40]}, completion: {completion[:40]}}}"
    option = f"`-p {shlex.quote(spelled)}` of a job, `--column` of a preview"
    return f"Say what each column is with columns, such as columns: {columns} ({option})"


@dataclass(frozen=True, eq=False)
class Kind:
    """Shape of a row as it was read. Compared by identity, which makes counting them cheap."""

    shape: RowShape
    ignored: Keys = frozenset()
    """Keys that have a value and that the shape's function did not read."""
    media: Keys = frozenset()
    """Keys of pictures, sounds and films: a row in which one is not empty is bad."""


class Normaliser:
    """Turns the records of one set into rows; remembers which keys lead to which shape."""

    def __init__(self, detected: Detected, convert: RowConverter | None = None) -> None:
        self.detected, self.convert = detected, convert
        self.kind = lru_cache(MAX_KINDS)(self.find_kind)
        self.with_ignored = lru_cache(MAX_KINDS)(with_ignored)

    def __call__(self, record: object) -> tuple[Row, Kind]:
        """The row, and how it was read. Raises `BadRow`, also the one that a parser gives in place of a record."""
        if self.convert is not None:
            record = self.convert(record)
        if isinstance(record, BadRow):
            raise record
        if not isinstance(record, Mapping):
            raise BadRow("not_an_object", "the row is not a JSON object")
        return self.read(record, self.kind_of_record(record))

    def read(self, record: JsonMapping, kind: Kind) -> tuple[Row, Kind]:
        """Return the row of a record whose kind is known by its keys. Raises `BadRow`."""
        if kind.media:
            refuse_media(record, kind.media)
        parts = Record(record)
        row = kind.shape.parse(parts)
        ignored = frozenset(parts.unread())
        return row, self.with_ignored(kind, ignored) if ignored else kind

    def kind_of_record(self, record: Mapping[str, object]) -> Kind:
        """Return the kind of a row, whose keys decide unless what its shape needs is null. Raises `BadRow`."""
        keys, detected = frozenset(record), self.detected
        if None in record.values():
            shape = shape_of_record(record, detected.allowed)
            by_keys = find_shape(keys, detected.allowed)
            if shape is not None and shape is not by_keys and shape.port is detected.shape.port:
                keys = frozenset(key for key, value in record.items() if value is not None)
        return self.kind(keys)

    def find_kind(self, keys: Keys) -> Kind:
        """Return how a row with these keys is read. Raises `BadRow`."""
        shape = find_shape(keys, self.detected.allowed)
        if shape is not None and shape.port is self.detected.shape.port:
            return Kind(shape, media=keys & MEDIA_KEYS)
        format_name, other = self.detected.format.value, shape or find_shape(keys)
        if other is not None and other.port is not Port.PROMPTS:
            raise BadRow("other_format", f"the row looks like {other.name}, the set is {format_name}")
        named = ", ".join(sorted(key[:40] for key in keys)[:8]) or "none"
        raise BadRow("missing_fields", f"keys of no {format_name} row: {named}")


def with_ignored(kind: Kind, ignored: Keys) -> Kind:
    """Return the kind of a row that has keys which nothing read."""
    return Kind(kind.shape, ignored, kind.media)


MOST_NAMES = 20
READ_NAMES = frozenset({*COLUMN_FIELDS, *COLUMN_NAMES, *QUESTION_KEYS, "reward_model"})
"""Names under which a shape would read a column."""


@dataclass(frozen=True)
class ColumnMapping(RowConverter):
    """Renames the columns of a row to the fields that shapes read."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Field -> column."""

    def __call__(self, record: object) -> object:
        """Return the row with its fields; a bad row stays one."""
        return record if isinstance(record, BadRow) or not isinstance(record, Mapping) else self.function(dict(record))

    def of_sample(self, records: Sequence[object]) -> list[object]:
        """The renamed rows of a sample. Raises `InvalidInput` (`E-DATA-FORMAT`) for a column that none of them has."""
        there = list(dict.fromkeys(key for record in records if isinstance(record, Mapping) for key in record))
        for name, column in self.columns.items():
            optional = name == column and not COLUMN_FIELDS[name]
            if there and column not in there and not optional:
                raise unknown_column(name, column, there)
        return [self(record) for record in records]


def map_columns(columns: Mapping[str, str]) -> ColumnMapping:
    """Return the mapping of a set's columns."""
    fields = {column: name for name, column in columns.items()}

    def rename(row: Mapping[str, object]) -> dict[str, object]:
        return {
            fields.get(key) or (f"{key} (not mapped)" if key in READ_NAMES else key): value
            for key, value in row.items()
        }

    return ColumnMapping("columns", rename, columns)


def unknown_column(name: str, column: str, there: list[str]) -> InvalidInput:
    near = difflib.get_close_matches(column, there, n=1)
    names = ", ".join(key[:40] for key in there[:MOST_NAMES])
    return InvalidInput(
        f"columns.{name}: there is no column {column!r}.",
        why=f"The first rows have: {names}.",
        do=f"Did you mean {near[0]!r}?" if near else "Name one of them.",
        code="E-DATA-FORMAT",
    )
