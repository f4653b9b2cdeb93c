"""Event files: one class writes them, `EventWriter`, and one reads them, while they grow and afterwards.

Two kinds of files have this form, and they say different things. `events.jsonl` of a work folder is the series of one
training: every step, across restarts, shared by all runs that ask for the same training, and it outlives them.
`events.jsonl` of a run is the story of its nodes: what started, was reused, failed or stopped, and a line of progress
twice a second, also of nodes without a child. A run names the work folders of its trainers (`job`); steps and curves
are read there and not copied.

A half-written line waits for its rest; an invalid line becomes a warning and is skipped. Nothing is read twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trainyard.compute.tail import LineTail
from trainyard.workers.trainyard_worker.contract import EventWriter

__all__ = ["Event", "EventTail", "EventWriter", "read_events"]

Event = dict[str, Any]

UNREADABLE = "E-EVENT"
MAX_EVENT_BYTES = 1 << 20
"""A longer line is not an event of Trainyard; it is skipped and reported as a warning."""


@dataclass
class EventTail(LineTail):
    """Reads the events of a growing file."""

    skipping: bool = False

    def read(self) -> list[Event]:
        """Return the events that were completed since the last call."""
        events = [event for line in self.read_lines() if (event := self._parse(line)) is not None]
        if len(self.pending) > MAX_EVENT_BYTES:
            self.pending, self.skipping = b"", True
            events.append(unreadable("an event line longer than 1 MiB was skipped"))
        return events

    def read_all(self) -> Iterator[Event]:
        """Yield every event that is complete by now, however many there are."""
        while events := self.read():
            yield from events

    def read_rest(self) -> Iterator[Event]:
        """Return everything up to the end of the file, including a last line whose writer died before its newline."""
        yield from self.read_all()
        if self.pending and (event := parse(self.pending)) is not None:
            yield event

    def _parse(self, line: bytes) -> Event | None:
        if self.skipping:  # the end of a line that was too long
            self.skipping = False
            return None
        if not line.strip():
            return None
        return parse(line) or unreadable(f"an event line could not be read: {line[:80]!r}")


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file in order; a line that is not an event (its writer died) is skipped."""
    return (event for event in EventTail(path).read_rest() if event.get("code") != UNREADABLE)


def parse(line: bytes) -> Event | None:
    """Return the event of a line; None when it is not a JSON object with a text as its `event`."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def unreadable(text: str) -> Event:
    return {"event": "warning", "time": time.time(), "code": UNREADABLE, "text": text}
