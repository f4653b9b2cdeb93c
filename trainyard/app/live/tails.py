"""Growing files that any number of clients follow: each file is looked at once, by one task of the event loop.

A client has a place in the file and is woken when there is more. What was read last is kept for all; a client that
is further behind reads from the file again, a block at a time. So nothing is queued for a slow one, and one that goes
away leaves nothing but an entry less. The task ends with the last client.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from trainyard.compute.events import BLOCK_BYTES, LineSpan, find_last_end, read_spans

LOOK_EVERY_S = 0.1
KEPT_LINES = 2000


class LogPlace(NamedTuple):
    """Position of a client in a file."""

    offset: int = 0
    inode: int = 0
    """0: of whichever file is there."""


@dataclass
class FileTail:
    """A file and its last lines."""

    path: Path
    listeners: set[asyncio.Event] = field(default_factory=set)
    inode: int = 0
    size: int = 0
    end: int = 0
    """Where the last whole line that was read ends."""
    behind: bool = False
    """Whether there was more to read than a block."""
    lines: deque[LineSpan] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    def look(self) -> None:
        """Read the new bytes, and wake the waiting clients."""
        try:
            there = os.stat(self.path)
        except OSError:
            return  # it is not there yet, or no more
        if (there.st_ino, there.st_size) == (self.inode, self.size) and not self.behind:
            return
        if self.inode == 0:
            self.end = find_last_end(self.path, there.st_size)  # what is before is read by those who want it
        elif there.st_ino != self.inode or there.st_size < self.end:
            self.lines.clear()
            self.end = 0
        self.inode, self.size = there.st_ino, there.st_size
        spans = read_spans(self.path, self.end)
        self.lines.extend(spans)
        self.end = spans[-1].end if spans else self.end
        self.behind = bool(spans) and self.end + BLOCK_BYTES < self.size
        for listener in self.listeners:
            listener.set()

    def after(self, position: LogPlace) -> tuple[list[LineSpan], LogPlace]:
        """Return the lines from a place on, at most a block, and the place after them; of a replaced or cut file from
        0.
        """
        if not self.inode:
            return [], position
        if position.offset > self.size:
            self.look()  # a client that reads the file itself is ahead of the last look while the file grows
        if position.inode not in (0, self.inode) or position.offset > self.size:
            position = LogPlace()
        spans: list[LineSpan] = []
        if self.lines and self.lines[0].start <= position.offset:
            newer = takewhile(lambda line: line.start >= position.offset, reversed(self.lines))
            spans = list(newer)[::-1]
        if not spans and position.offset < self.size:
            spans = read_spans(self.path, position.offset)
        return spans, LogPlace(spans[-1].end if spans else position.offset, self.inode)


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


def find_hub() -> TailHub:
    """Return the hub of the running event loop."""
    return HUBS.setdefault(asyncio.get_running_loop(), TailHub())
