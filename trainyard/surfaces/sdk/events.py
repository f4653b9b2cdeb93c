"""Server-sent events as a client reads them: https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.6."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field

import httpx

EVENTS_TYPE = "text/event-stream"
LINE_END = re.compile(r"\r\n|\n|\r")
"""The line ends of a stream of events; a text may have others, such as U+2028, at which `iter_lines` of httpx cuts."""


@dataclass
class LineSplitter:
    """Cuts a stream into lines, whatever pieces of it arrive."""

    rest: str = field(default="", init=False)

    def feed(self, text: str) -> list[str]:
        """Return the lines that are whole now. A carriage return at the end of a piece may be half of a line end."""
        text = self.rest + text
        is_open = text.endswith("\r")
        *lines, self.rest = LINE_END.split(text[:-1] if is_open else text)
        self.rest += "\r" if is_open else ""
        return lines


@dataclass(frozen=True)
class NextLine:
    """Asks for the next line of the stream that was opened last; brings None at its end."""


@dataclass(frozen=True)
class ReadEvent:
    """An event of a stream."""

    name: str
    data: str
    id: str


def media_type(response: httpx.Response) -> str:
    """Return the media type of a response without its parameters, in lower case."""
    header: str = response.headers.get("content-type", "")
    return header.partition(";")[0].strip().lower()


def is_event_stream(response: httpx.Response) -> bool:
    return media_type(response) == EVENTS_TYPE


def next_event() -> Generator[NextLine, str | httpx.Response | None, ReadEvent | None]:
    """Return the next event; None where the stream has ended or was cut off, and an event of which a part came is
    dropped.
    """
    fields: dict[str, str] = {}
    data: list[str] = []
    while isinstance(line := (yield NextLine()), str):
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif name:  # a comment has no name
            fields[name] = value.removeprefix(" ")
        elif not line and data:
            return ReadEvent(fields.get("event", "message"), "\n".join(data), fields.get("id", ""))
        elif not line:
            fields = {}
    return None
