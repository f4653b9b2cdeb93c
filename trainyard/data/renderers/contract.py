"""The terms of this folder: the fields of a renderer's row, and the results of rendering and parsing.

A turn is a message as OpenAI's API and chat templates write it: {"role", "content"} and, where there are such,
"reasoning_content" and "tool_calls" (a list of {"type": "function", "function": {"name", "arguments"}}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Turn = dict[str, Any]
Tools = list[dict[str, Any]]
"""Schemas of functions, as OpenAI's API takes them."""
Grammar = Mapping[str, Mapping[str, Any]]
"""The fields of a response template of transformers: how an answer's text becomes a message.
source: transformers, docs/source/en/chat_response_parsing.md"""


class Flavour(StrEnum):
    """A kind of conversation in which the extension property is probed."""

    PLAIN = "plain"
    SYSTEM = "system"
    THOUGHTS = "thoughts"
    TOOLS = "tools"


PLAIN = frozenset({Flavour.PLAIN, Flavour.SYSTEM})
THINKING = PLAIN | {Flavour.THOUGHTS}
CALLING = PLAIN | {Flavour.TOOLS}
ALL = THINKING | CALLING
NONE: frozenset[Flavour] = frozenset()


class Termination(StrEnum):
    """End of a sampled turn."""

    STOP = "stop"
    """With one of the renderer's stop tokens; what follows it is not part of the turn."""
    LENGTH = "length"
    """Without a stop token: the answer was cut off."""
    MALFORMED = "malformed"
    """With a stop token, but its thoughts or calls cannot be read; the message contains the plain text."""

    @property
    def finished(self) -> bool:
        """Whether the turn is a whole message that a conversation may continue from."""
        return self is Termination.STOP


@dataclass(frozen=True)
class RendererSpec:
    """A row of the table."""

    name: str
    templates: Mapping[str, frozenset[Flavour]]
    """Known chat templates (names of files that TRL ships, or of `own`) and the kinds of conversation in which each
    has the extension property. The first is the renderer's default. The claim is probed."""
    grammar: Grammar
    own_templates: Mapping[str, str] = field(default_factory=dict)
    """Texts of templates that TRL does not ship."""
    stops: tuple[str, ...] = ()
    """Stop tokens besides those that the template itself writes after an answer."""
    tokens: tuple[str, ...] = ()
    """Tokens of the family that the pattern of `verify` does not find in the template's text."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as ids. The three lists have the same length."""

    ids: list[int]
    weights: list[float]
    """1 on the assistant's text, up to and including its stop token; 0 elsewhere."""
    message_index: list[int]
    """Index of the message that a token belongs to; the number of messages for a generation prompt."""


@dataclass(frozen=True)
class Parsed:
    """A sampled turn as a message."""

    turn: Turn
    termination: Termination
