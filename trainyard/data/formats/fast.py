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

from trainyard.data.formats.messages import ROLES, check_answered
from trainyard.data.formats.shapes import Kind, Normaliser
from trainyard.data.rows import Message, Row, SftRow

QUOTE, BACKSLASH, COLON, SPACE, OPEN, CLOSE = b'"\\: {}'
ESCAPED = re.compile(r'[\x00-\x1f"\\\ud800-\udfff]')
Flat = dict[str, str | int | float | bool | None]


class Turn(Message, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An OpenAI turn of text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: None = None
    more: None = None


class SharegptTurn(msgspec.Struct, gc=False, forbid_unknown_fields=True, rename={"who": "from"}):
    """A ShareGPT turn of text."""

    who: Literal["human", "gpt", "system", "observation", "user", "assistant"]
    value: str


@dataclass(frozen=True)
class FastDecoder:
    """Three steps over the lines of a block: decode them, count the keys of each value, make rows of all."""

    kind: Kind
    decoder: msgspec.json.Decoder[Any]
    num_keys: Callable[[list[Any]], list[int]]
    """-1 for None."""
    rows: Callable[[list[Any]], list[Row]]
    """Raises `BadRow` at the first bad row."""


def fast_decoder(normalise: Normaliser, keys: frozenset[str]) -> FastDecoder | None:
    """The decoder for rows that have these keys, which the first row of the file showed.

    None for rows with keys of media, each of which has to be looked into, and for keys that are escaped in JSON: the
    decoder cannot name them.
    """
    kind = normalise.kind(keys)
    if kind.media or any(map(ESCAPED.search, keys)):
        return None
    return chat_decoder(kind) if kind.shape.name in ("openai", "sharegpt") else flat_decoder(kind, keys)


def flat_decoder(kind: Kind, keys: frozenset[str]) -> FastDecoder:
    """Rows of strings and numbers that all have the same keys, normalised by the shape's own function."""
    parse = kind.shape.parse

    def num_keys(values: list[Any]) -> list[int]:
        return [len(value) if value is not None and value.keys() == keys else -1 for value in values]

    def rows(values: list[Any]) -> list[Row]:
        return list(map(parse, values))

    return FastDecoder(kind, msgspec.json.Decoder(Flat), num_keys, rows)


def chat_decoder(kind: Kind) -> FastDecoder:
    """Chats of plain text. Keys that no chat needs are decoded as raw JSON and counted as ignored."""
    openai = kind.shape.name == "openai"
    ignored = {f"ignored_{number}": key for number, key in enumerate(sorted(kind.ignored))}
    turns: Any = Annotated[list[Turn] if openai else list[SharegptTurn], msgspec.Meta(min_length=1)]
    chat = msgspec.defstruct(
        "Chat",
        [("messages", turns), *[(field, msgspec.Raw) for field in ignored]],
        rename={"messages": "messages" if openai else "conversations", **ignored},
        forbid_unknown_fields=True,
        gc=False,
    )
    own, where = 1 + len(ignored), "the conversation"

    def num_keys(values: list[Any]) -> list[int]:
        return [-1 if value is None else own + 2 * len(value.messages) for value in values]

    def openai_rows(values: list[Any]) -> list[Row]:
        return [SftRow(check_answered(value.messages, where)) for value in values]

    def sharegpt_rows(values: list[Any]) -> list[Row]:
        spelled = ([Message(ROLES[turn.who], turn.value) for turn in value.messages] for value in values)
        return [SftRow(check_answered(messages, where)) for messages in spelled]

    return FastDecoder(kind, msgspec.json.Decoder(chat), num_keys, openai_rows if openai else sharegpt_rows)


def one_object_a_line(text: np.ndarray, newlines: np.ndarray) -> bool:
    """Whether every line begins with `{` and ends with `}`.

    `}`, a newline and `{` can follow each other only between two values. So if such lines decode one after another,
    no value goes over a line end, and if there are as many values as lines, each line is exactly one object.
    """
    begins, ends = text[newlines[:-1] + 1] == OPEN, text[newlines - 1] == CLOSE
    return bool(len(text) and text[0] == OPEN and begins.all() and ends.all())


def key_bounds(text: np.ndarray, newlines: np.ndarray) -> list[int]:
    """Return the upper bound of each line's number of keys. `text` is bytes, `newlines` the offsets of its line ends.

    A key ends in a quote, then optional white space, then a colon. So every colon after a quote or after white space
    may end one, except after an escaped quote: a key that ends in a backslash is known to no decoder.
    """
    colons = np.flatnonzero(text == COLON)
    before = text[colons - 1]
    ends_key = ((before == QUOTE) & (text[colons - 2] != BACKSLASH)) | (before <= SPACE)
    return cast(list[int], np.diff(np.searchsorted(colons[ends_key], newlines), prepend=0).tolist())


def has_nul_escape(text: np.ndarray) -> bool:
    """Whether a backslash followed by `u0000` occurs. Finding the rare backslashes first is three times as fast as
    searching the six bytes."""
    found = np.flatnonzero(text[: max(0, len(text) - 5)] == BACKSLASH)
    for place, byte in enumerate(b"u0000", 1):
        found = found[text[found + place] == byte]
    return bool(len(found))
