"""Growing files that any number of clients follow: each file is looked at once, by one task of the event loop.

A client has a place in the file and is woken when there is more. What was read last is kept for all; a client that
is further behind reads from the file again, a block at a time. So nothing is queued for a slow one, and one that goes
away leaves nothing but an entry less. The task ends with the last client.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

LOOK_EVERY_S = 0.1
BLOCK_BYTES = 1 << 18
"""Read at once: a millisecond of the event loop."""
KEPT_LINES = 2000
MAX_LINE_BYTES = 1 << 20
"""A longer line is given in parts."""


class LogPiece(NamedTuple):
    """A line of a file without its end."""

    start: int
    end: int
    """Where the next one begins."""
    data: bytes


class LogPlace(NamedTuple):
    """Where a client is in a file."""

    offset: int = 0
    inode: int = 0
    """0: of whichever file is there."""


@dataclass
class FileTail:
    """One file and its last lines."""

    path: Path
    listeners: set[asyncio.Event] = field(default_factory=set)
    inode: int = 0
    size: int = 0
    end: int = 0
    """Where the last whole line that was read ends."""
    behind: bool = False
    """Whether there was more to read than a block."""
    lines: deque[LogPiece] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def look(self) -> None:
        """Read what is new, and wake those who wait for it."""
        try:
            there = os.stat(self.path)
        except OSError:
            return  # it is not there yet, or no more
        if (there.st_ino, there.st_size) == (self.inode, self.size) and not self.behind:
            return
        if self.inode == 0:
            self.end = last_line_end(self.path, there.st_size)  # what is before is read by those who want it
        elif there.st_ino != self.inode or there.st_size < self.end:
            self.lines.clear()
            self.end = 0
        self.inode, self.size = there.st_ino, there.st_size
        found = read_lines(self.path, self.end)
        self.lines.extend(found)
        self.end = found[-1].end if found else self.end
        self.behind = bool(found) and self.end + BLOCK_BYTES < self.size
        for listener in self.listeners:
            listener.set()

    def after(self, place: LogPlace) -> tuple[list[LogPiece], LogPlace]:
        """The lines from a place on, at most a block, and the place after them; of a replaced or cut file from 0."""
        if not self.inode:
            return [], place
        if place.offset > self.size:
            self.look()  # a client that reads the file itself is ahead of the last look while the file grows
        if place.inode not in (0, self.inode) or place.offset > self.size:
            place = LogPlace()
        found: list[LogPiece] = []
        if self.lines and self.lines[0].start <= place.offset:
            newer = takewhile(lambda line: line.start >= place.offset, reversed(self.lines))
            found = list(newer)[::-1]
        if not found and place.offset < self.size:
            found = read_lines(self.path, place.offset)
        return found, LogPlace(found[-1].end if found else place.offset, self.inode)


def last_line_end(path: Path, size: int) -> int:
    """Where the last whole line of a file ends; 0 without one in its last megabyte."""
    start = max(0, size - MAX_LINE_BYTES)
    with path.open("rb") as file:
        file.seek(start)
        return start + file.read(size - start).rfind(b"\n") + 1


def read_lines(path: Path, offset: int, limit: int = BLOCK_BYTES) -> list[LogPiece]:
    """The whole lines from an offset on, within so many bytes; a line that is longer in parts."""
    block = read_block(path, offset, limit)
    *whole, rest = block.split(b"\n")
    found = []
    for line in whole:
        found.append(LogPiece(offset, offset + len(line) + 1, line))
        offset += len(line) + 1
    if not found and len(rest) >= limit:
        found.append(LogPiece(offset, offset + len(rest), rest))
    return found


def read_lines_before(path: Path, end: int, limit: int = BLOCK_BYTES, most: int | None = None) -> list[LogPiece]:
    """The last whole lines before an offset, within so many bytes; of a line that is longer its last part."""
    start = max(0, end - limit)
    block = read_block(path, start, end - start)
    if start > 0 and read_block(path, start - 1, 1) != b"\n":
        cut = block.find(b"\n", 0, len(block) - 1) + 1  # the first line begins before the block
        start, block = start + cut, block[cut:]
    found = []
    for line in re.findall(rb"[^\n]*\n|[^\n]+", block):
        found.append(LogPiece(start, start + len(line), line.removesuffix(b"\n")))
        start += len(line)
    return found if most is None else found[max(0, len(found) - most) :]


def read_rest(path: Path, offset: int, limit: int = BLOCK_BYTES) -> list[LogPiece]:
    """The last line of a writer that has ended before it wrote the line's end."""
    block = read_block(path, offset, limit)
    return [LogPiece(offset, offset + len(block), block)] if block else []


def read_block(path: Path, offset: int, limit: int) -> bytes:
    """At most so many bytes from an offset on; none of a file that cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except OSError:
        return b""


class TailHub:
    """The files that clients of one event loop follow."""

    def __init__(self) -> None:
        self.tails: dict[Path, FileTail] = {}
        self.task: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, path: Path, listener: asyncio.Event) -> Iterator[FileTail]:
        """The tail of a file; `listener` is set when there is more."""
        tail = self.tails.setdefault(path, FileTail(path))
        tail.listeners.add(listener)
        tail.look()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self.look_for_ever())
        try:
            yield tail
        finally:
            tail.listeners.discard(listener)
            if not tail.listeners:
                self.tails.pop(path, None)
            if not self.tails and self.task is not None:
                self.task.cancel()
                self.task = None

    async def look_for_ever(self) -> None:
        while True:
            for tail in list(self.tails.values()):
                tail.look()
            await asyncio.sleep(LOOK_EVERY_S)


HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, TailHub] = WeakKeyDictionary()


def hub() -> TailHub:
    """The hub of the running event loop."""
    return HUBS.setdefault(asyncio.get_running_loop(), TailHub())
