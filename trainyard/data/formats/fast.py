"""Typed decoders for the shapes that large files have; what they cannot prove exact goes the strict way.

A decoded value is accepted only if its line contains exactly as many keys as the value: `key_bounds` counts every colon
that could end a key, which is never fewer than the keys there are. Equality therefore proves that no key occurs twice
and none was ignored; a line whose text merely looks like a key (` :`) is read again by the strict parser.
The strict parser defines what a row means; tests compare these decoders with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np

from trainyard.data.formats.messages import ROLES, SYSTEM_KEYS, check_answered
from trainyard.data.formats.records import Record
from trainyard.data.formats.shapes import Kind, Normaliser
from trainyard.data.rows import Message, Row, SftRow

FAST_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
QUOTE, BACKSLASH, COLON, SPACE = b'"\\: '
ESCAPED = re.compile(r'[\x00-\x1f"\\\ud800-\udfff]')
Flat = dict[str, str | int | float | bool | None]


class Turn(Message, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An OpenAI turn of text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: None = None
    more: None = None


class SharegptTurn(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename={"role": "from", "content": "value"}):
    """A ShareGPT turn of text."""

    role: Literal["human", "gpt", "system", "observation", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class FastDecoder:
    """Decodes a line, counts the keys of the value, and makes a row of it."""

    decoder: msgspec.json.Decoder[object]
    num_keys: Callable[[object], int]
    read: Callable[[Any], tuple[Row, Kind]]
    """Raises `BadRow`."""

    def decode(self, line: bytes, bound: int) -> Any:
        """Return the value of a line with at most `bound` keys; None where it is not proved to be the whole line."""
        try:
            value = self.decoder.decode(line)
        except FAST_ERRORS:
            return None
        return value if self.num_keys(value) == bound else None


def fast_decoder(normalise: Normaliser, keys: frozenset[str]) -> FastDecoder | None:
    """Return the decoder for rows that have these keys, which the first row of the file showed.

    None for rows with keys of media, each of which has to be looked into, for chats with keys that their parser reads,
    and for keys that are escaped in JSON: the decoder cannot name them.
    """
    kind = normalise.kind(keys)
    if kind.media or any(map(ESCAPED.search, keys)):
        return None
    if kind.shape.name in ("openai", "sharegpt"):
        return chat_decoder(normalise, kind, keys)

    # Rows of strings and numbers that all have the same keys, normalised by the shape's own function.
    def num_keys(value: Any) -> int:
        return len(value) if value.keys() == keys else -1

    def read(value: Any) -> tuple[Row, Kind]:
        return normalise(value) if None in value.values() else normalise.read(value, kind)

    return FastDecoder(msgspec.json.Decoder(Flat), num_keys, read)


def chat_decoder(normalise: Normaliser, kind: Kind, keys: frozenset[str]) -> FastDecoder | None:
    """Chats of plain text. Keys that their parser never reads are decoded as raw JSON and counted as ignored."""
    openai = kind.shape.name == "openai"
    name = "messages" if openai else "conversations"
    ignored = {f"ignored_{number}": key for number, key in enumerate(sorted(keys - {name}))}
    if keys & read_keys(kind, name) - {name}:
        return None
    turns: object = Annotated[list[Turn] if openai else list[SharegptTurn], msgspec.Meta(min_length=1)]
    chat = msgspec.defstruct(
        "Chat",
        [("messages", turns), *[(field, msgspec.Raw) for field in ignored]],
        rename={"messages": name, **ignored},
        forbid_unknown_fields=True,
        gc=False,
    )
    num_own = 1 + len(ignored)

    def num_keys(value: Any) -> int:
        for turn in value.messages:
            if "\0" in turn.content:
                return -1  # the strict parser names its field
        return num_own + 2 * len(value.messages)

    def read(value: Any) -> tuple[Row, Kind]:
        spelled = value.messages if openai else [Message(ROLES[turn.role], turn.content) for turn in value.messages]
        row = SftRow(check_answered(spelled, "the conversation"))
        if not ignored:
            return row, kind
        filled = frozenset(key for field, key in ignored.items() if not is_blank_json(bytes(getattr(value, field))))
        return row, normalise.with_ignored(kind, filled) if filled else kind

    return FastDecoder(msgspec.json.Decoder(chat), num_keys, read)


def is_blank_json(raw: bytes) -> bool:
    """Whether a raw value says nothing, as `records.is_empty` means it."""
    return raw in (b"null", b'""') or (raw[:1] in (b"[", b"{") and not raw[1:-1].strip())


def read_keys(kind: Kind, name: str) -> set[str]:
    """Return the keys of a chat that its parser reads, seen on a chat of two plain turns."""
    record = Record({name: [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    kind.shape.parse(record)
    return record.read | {*SYSTEM_KEYS, "tools", "functions"}


def key_bounds(text: np.ndarray, newlines: np.ndarray) -> list[int]:
    """Return the upper bound of each line's number of keys. `text` is bytes, `newlines` the offsets of its line ends.

    A key ends in a quote, then optional white space, then a colon. So every colon after a quote or after white space
    may end one, except after an escaped quote: a key that ends in a backslash is known to no decoder.
    """
    colons = np.flatnonzero(text == COLON)
    before = text[colons - 1]
    ends_key = ((before == QUOTE) & (text[colons - 2] != BACKSLASH)) | (before <= SPACE)
    return cast(list[int], np.diff(np.searchsorted(colons[ends_key], newlines), prepend=0).tolist())
