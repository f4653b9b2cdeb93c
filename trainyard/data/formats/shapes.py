"""The shapes of a data row: one table, from the keys that a row has to the function that normalises it.

A *shape* is one spelling (`chosen` + `rejected`, `messages`, …), a *format* is what a chain names; a format allows
one or more shapes, and `auto` allows all of them. The first shape of the table whose keys a row has is its shape.
Adding one: a function `parse(record) -> Row` that raises `BadRow`, a row in `SHAPES`, a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.data.formats import preferences, supervised
from trainyard.data.formats.messages import MEDIA_KEYS, refuse_media, unread_keys
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Row
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import DataFormat, Port

Keys = frozenset[str]
CHAT = supervised.CHAT_KEYS | {"messages", "conversations"}
PROMPTS = frozenset(preferences.PROMPT_KEYS) | supervised.ALPACA_KEYS - {"output"}
MAX_KINDS = 1000
PAIR_KEYS = frozenset(name for pair in supervised.PAIRS for name in pair)


@dataclass(frozen=True)
class RowShape:
    """One spelling of a row."""

    name: str
    port: Port
    format: DataFormat
    """The format that a reader reports for it."""
    has: Callable[[Keys], bool]
    """Whether a row with these keys has the shape."""
    known: Keys
    """Keys that the shape reads; every other key is ignored and counted."""
    parse: Callable[[Mapping[str, Any]], Row]


def having(*names: str) -> Callable[[Keys], bool]:
    return frozenset(names).issubset


def has_label(keys: Keys) -> bool:
    answered = bool(keys & {"messages", "conversations"}) or {"instruction", "output"} <= keys
    return bool(keys & set(preferences.LABEL_KEYS)) and (answered or supervised.pair_of(keys) is not None)


def has_pair(keys: Keys) -> bool:
    return supervised.pair_of(keys) is not None


SHAPES: tuple[RowShape, ...] = (
    RowShape(
        "openai_preference", Port.PREFERENCE, DataFormat.PREFERENCE,
        having("input", "preferred_output", "non_preferred_output"),
        frozenset({"input", "preferred_output", "non_preferred_output"}), preferences.openai_preference,
    ),
    RowShape(
        "preference", Port.PREFERENCE, DataFormat.PREFERENCE, having("chosen", "rejected"),
        CHAT | PROMPTS | {"chosen", "rejected"}, preferences.preference,
    ),
    RowShape(
        "labelled", Port.LABELLED, DataFormat.LABELLED, has_label,
        CHAT | PROMPTS | PAIR_KEYS | set(preferences.LABEL_KEYS), preferences.labelled,
    ),
    RowShape("openai", Port.SFT, DataFormat.OPENAI, having("messages"), CHAT - {"conversations"}, supervised.chat),
    RowShape("sharegpt", Port.SFT, DataFormat.SHAREGPT, having("conversations"), CHAT - {"messages"}, supervised.chat),
    RowShape(
        "alpaca", Port.SFT, DataFormat.ALPACA, having("instruction", "output"), supervised.ALPACA_KEYS,
        supervised.alpaca,
    ),
    RowShape(
        "prompt_completion", Port.SFT, DataFormat.PROMPT_COMPLETION, has_pair,
        PAIR_KEYS | {"system", "tools"}, supervised.prompt_completion,
    ),
    RowShape("text", Port.TEXT, DataFormat.TEXT, having("text"), frozenset({"text"}), supervised.plain_text),
)  # fmt: skip
DOCUMENT = RowShape(
    "document", Port.DOCUMENTS, DataFormat.DOCUMENTS, having("text"), frozenset({"text", "title"}), supervised.document
)
BY_NAME = {shape.name: shape for shape in (*SHAPES, DOCUMENT)}
ALLOWED: dict[DataFormat, tuple[RowShape, ...]] = {
    DataFormat.AUTO: SHAPES,
    DataFormat.ALPACA: (BY_NAME["alpaca"],),
    DataFormat.SHAREGPT: tuple(BY_NAME[name] for name in ("preference", "labelled", "sharegpt")),
    DataFormat.OPENAI: tuple(BY_NAME[name] for name in ("openai_preference", "preference", "labelled", "openai")),
    DataFormat.PROMPT_COMPLETION: (BY_NAME["prompt_completion"],),
    DataFormat.PREFERENCE: (BY_NAME["openai_preference"], BY_NAME["preference"]),
    DataFormat.LABELLED: (BY_NAME["labelled"],),
    DataFormat.TOOL_CALLS: (BY_NAME["openai"], BY_NAME["sharegpt"]),
    DataFormat.TEXT: (BY_NAME["text"],),
    DataFormat.DOCUMENTS: (DOCUMENT,),
}
"""Format -> shapes that it may have. Files in OpenAI's and ShareGPT's spelling carry chats, preferences and labels."""


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
    allowed = ALLOWED[wanted]
    counts = Counter(shape.name for record in records if (shape := shape_of(record, allowed)))
    if not counts:
        raise no_format(records, wanted, where)
    shape = BY_NAME[counts.most_common(1)[0][0]]
    found = shape.format if wanted is DataFormat.AUTO else wanted
    if found in (DataFormat.OPENAI, DataFormat.SHAREGPT) and wanted is DataFormat.AUTO and mostly_tools(records):
        found = DataFormat.TOOL_CALLS
    return Detected(found, shape, allowed)


def mostly_tools(records: list[Mapping[str, Any]]) -> bool:
    return 2 * sum("tools" in record or "functions" in record for record in records) > len(records)


def no_format(records: list[Mapping[str, Any]], wanted: DataFormat, where: str) -> InvalidInput:
    keys = sorted({key for record in records for key in record})
    named = ", ".join(key[:40] for key in keys[:12]) or "none (the rows are not objects)"
    likely = Counter(shape.format.value for record in records if (shape := shape_of(record)))
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

    def __init__(self, detected: Detected) -> None:
        self.detected = detected
        self._kinds: dict[Keys, Kind] = {}
        self._inside: dict[tuple[Kind, Keys], Kind] = {}

    def __call__(self, record: Any) -> tuple[Row, Kind]:
        """The row, and how it was read. Raises `BadRow`."""
        if not isinstance(record, Mapping):
            raise BadRow("not_an_object", "the row is not a JSON object")
        kind = self.kind(frozenset(record))
        if kind.media:
            refuse_media(record, kind.media)
        read = {key: record[key] for key in kind.shape.known & record.keys()}
        return kind.shape.parse(record), self.with_ignored(kind, frozenset(unread_keys(read)))

    def with_ignored(self, kind: Kind, inside: Keys) -> Kind:
        """The kind of a row whose turns have keys that are ignored, too."""
        if not inside:
            return kind
        found = self._inside.get((kind, inside))
        if found is None:
            found = Kind(kind.shape, kind.ignored | inside, kind.media)
            if len(self._inside) < MAX_KINDS:
                self._inside[kind, inside] = found
        return found

    def kind(self, keys: Keys) -> Kind:
        """How a row with these keys is read. Raises `BadRow`."""
        kind = self._kinds.get(keys)
        if kind is None:
            shape = shape_of(keys, self.detected.allowed)
            if shape is None or shape.port is not self.detected.shape.port:
                raise self.unexpected(keys, shape or shape_of(keys))
            kind = Kind(shape, keys - shape.known, (keys & MEDIA_KEYS) - shape.known)
            if len(self._kinds) < MAX_KINDS:
                self._kinds[keys] = kind
        return kind

    def unexpected(self, keys: Keys, shape: RowShape | None) -> BadRow:
        if shape is not None:
            return BadRow("other_format", f"the row looks like {shape.name}, the set is {self.detected.format.value}")
        named = ", ".join(sorted(key[:40] for key in keys)[:8]) or "none"
        return BadRow("missing_fields", f"keys of no {self.detected.format.value} row: {named}")
