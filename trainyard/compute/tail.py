"""Reading files that grow: lines by their offset, the end of a log, and a tail that keeps its place.

LineTail        keeps its offset and the half-written last line; `EventTail` (events) reads events by it
read_spans      lines with their offsets, for a reader that keeps the place itself, such as a client over HTTP
read_end        the last bytes of a log
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from trainyard.cancellation import require_caller

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
