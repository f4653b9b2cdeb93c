"""Event files, and files that grow: `EventWriter` writes events, `EventTail` reads them; `LineTail` follows any log.

LineTail        keeps its offset and the half-written last line; `EventTail` reads events by it
read_spans      lines with their offsets, for a reader that keeps the place itself, such as a client over HTTP
read_end        the last bytes of a log

Two kinds of files have the form of events. `events.jsonl` of a work folder is the series of one training: every step,
across restarts, shared by all runs that ask for the same training, and it outlives them. `events.jsonl` of a run is the
story of its nodes: started, reused, failed or stopped, and a line of progress twice a second, also of nodes without a
child. A run names the work folders of its trainers (`job`); steps and curves are read there and not copied.

A half-written line waits for its rest; an invalid line becomes a warning and is skipped. Nothing is read twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson

from trainyard.cancellation import require_caller
from trainyard.workers.trainyard_worker.contract import EventWriter

READ_BYTES = 1 << 22
"""Read at one poll of a tail, so that a flood of lines cannot block a loop."""
BLOCK_BYTES = 1 << 18
"""Read at once by default: a millisecond of an event loop."""
MAX_LINE_BYTES = 1 << 20


class LineSpan(NamedTuple):
    """A line of a file without its end."""

    start: int
    end: int
    """Offset of the next one."""
    data: bytes


@dataclass
class LineTail:
    """Reads complete lines of a growing file; a half-written line waits for its rest."""

    path: Path
    offset: int = 0
    pending: bytes = b""

    @classmethod
    def at_end(cls, path: Path, last_bytes: int = 0) -> Self:
        """Return a reader of new lines, and of the whole lines among the last `last_bytes`."""
        size = path.stat().st_size if path.exists() else 0
        if not last_bytes or size <= last_bytes:
            return cls(path, 0 if last_bytes else size)
        with path.open("rb") as stream:
            stream.seek(size - last_bytes)
            stream.readline()
            return cls(path, stream.tell())

    def read_lines(self) -> list[bytes]:
        """Return the lines that were completed since the last call, at most `READ_BYTES` of them."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size < self.offset:  # the file was replaced
            self.offset, self.pending = 0, b""
        require_caller()
        block = read_block(self.path, self.offset, READ_BYTES)
        self.offset += len(block)
        *lines, self.pending = (self.pending + block).split(b"\n")
        return lines

    def read_texts(self) -> list[str]:
        """Return the new lines as text; of a line that was overwritten its last state."""
        return [line.decode("utf-8", "replace").rpartition("\r")[2] for line in self.read_lines()]

    def read_last_texts(self) -> Iterator[str]:
        """Yield everything that is left, also a last line without its end."""
        while lines := self.read_texts():
            yield from lines
        if self.pending:
            yield self.pending.decode("utf-8", "replace")
            self.pending = b""


def find_last_end(path: Path, size: int) -> int:
    """Return the offset at which the last whole line of a file ends; 0 without one in its last megabyte."""
    start = max(0, size - MAX_LINE_BYTES)
    with path.open("rb") as file:
        file.seek(start)
        return start + file.read(size - start).rfind(b"\n") + 1


def read_spans(path: Path, offset: int, limit: int = BLOCK_BYTES) -> list[LineSpan]:
    """Return the whole lines from an offset on, within `limit` bytes; a longer line in parts."""
    block = read_block(path, offset, limit)
    *lines, rest = block.split(b"\n")
    spans = []
    for line in lines:
        spans.append(LineSpan(offset, offset + len(line) + 1, line))
        offset += len(line) + 1
    if not spans and len(rest) >= limit:
        spans.append(LineSpan(offset, offset + len(rest), rest))
    return spans


def read_spans_before(path: Path, end: int, limit: int = BLOCK_BYTES, most: int | None = None) -> list[LineSpan]:
    """Return the last whole lines before an offset, within `limit` bytes; of a longer line its last part."""
    start = max(0, end - limit)
    block = read_block(path, start, end - start)
    if start > 0 and read_block(path, start - 1, 1) != b"\n":
        cut = block.find(b"\n", 0, len(block) - 1) + 1  # the first line begins before the block
        start, block = start + cut, block[cut:]
    spans = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", block):
        spans.append(LineSpan(start, start + len(line), line.removesuffix(b"\n")))
        start += len(line)
    return spans if most is None else spans[max(0, len(spans) - most) :]


def read_last_span(path: Path, offset: int, limit: int = BLOCK_BYTES) -> list[LineSpan]:
    """Return the last line of a writer that ended before it wrote the line's end."""
    block = read_block(path, offset, limit)
    return [LineSpan(offset, offset + len(block), block)] if block else []


def read_block(path: Path, offset: int, limit: int) -> bytes:
    """Return at most `limit` bytes from an offset on; none of a file that cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except OSError:
        return b""


def read_end(path: Path, last_bytes: int) -> tuple[bytes, bool]:
    """Return (the last bytes of a file, whether they are all of it); nothing of one that is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - last_bytes))
            return file.read(), size <= last_bytes
    except FileNotFoundError:
        return b"", True


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
