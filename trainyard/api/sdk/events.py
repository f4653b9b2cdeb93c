"""Server-sent events as a client reads them: https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.6."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import httpx

EVENTS_TYPE = "text/event-stream"


@dataclass(frozen=True)
class NextLine:
    """Asks for the next line of the stream that was opened last; brings None at its end."""


@dataclass(frozen=True)
class ReadEvent:
    """One event of a stream."""

    name: str
    data: str
    id: str


def is_event_stream(response: httpx.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip() == EVENTS_TYPE


def next_event() -> Generator[NextLine, str | httpx.Response | httpx.TransportError | None, ReadEvent | None]:
    """The next event; None where the stream has ended or was cut off, and an event of which a part came is dropped."""
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
