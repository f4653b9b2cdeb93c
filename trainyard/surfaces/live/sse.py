"""Server-sent events as text: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.

A text may have any characters: each of its lines is a `data:` line, and an id or a name with a line break is refused,
because a client would read the rest as another field. A comment keeps a connection open that has nothing to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_END = re.compile(r"\r\n|\n|\r")
NO_ID = re.compile("[\r\n\0]")
"""A client ignores an id with a NUL."""


@dataclass(frozen=True)
class ServerEvent:
    """An event of a stream, or a comment alone."""

    data: str = ""
    event: str = ""
    """Its name; "" is `message`."""
    id: str = ""
    """What a client sends as `Last-Event-ID` to continue after it; "" leaves the last one."""
    comment: str = ""

    def encode(self) -> bytes:
        """Return the event as a client reads it. Raises `ValueError` for an id or a name with a line break."""
        if NO_ID.search(self.id) or NO_ID.search(self.event):
            raise ValueError(f"An event cannot have the id {self.id!r} and the name {self.event!r}.")
        lines = [f": {line}" for line in LINE_END.split(self.comment)] if self.comment else []
        lines += [f"event: {self.event}"] if self.event else []
        lines += [f"id: {self.id}"] if self.id else []
        lines += [f"data: {line}" for line in LINE_END.split(self.data)] if self.data or not self.comment else []
        return "".join(f"{line}\n" for line in [*lines, ""]).encode("utf-8", "replace")


HEARTBEAT = ServerEvent(comment="heartbeat")
