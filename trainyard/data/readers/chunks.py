"""Output of every reader: chunks of rows in file order with the bad ones between them, and the set they make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainyard.data.formats.shapes import Kind
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Row
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import DataFormat, Port

CHUNK_ROWS = 1000
CHUNK_BYTES = 16 << 20
"""Size of the rows from which a chunk is not added to, however few they are."""


class Bad(NamedTuple):
    """A row for the quarantine. `before` counts the good rows before it in its chunk."""

    before: int
    line: int
    offset: int
    reason: BadRow
    text: bytes | str


@dataclass
class Chunk:
    """`rows`, `kinds` and `places` are parallel; a place says where a person finds the row."""

    source: str
    rows: list[Row] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    size: int = 0
    """About how many bytes its rows have; the writer keeps so many in memory."""

    def add(self, read: Callable[[Any], tuple[Row, Kind]], value: Any, line: int, offset: int, text: Any) -> None:
        """Read one row; what cannot be read becomes a bad row. `text` is shown in the quarantine."""
        try:
            row, kind = read(value)
        except BadRow as reason:
            self.add_bad(line, offset, reason, text)
            return
        self.rows.append(row)
        self.kinds.append(kind)
        self.sources.append(f"{self.source}:{line}")

    def take_all(self, read: list[tuple[Row, Kind]], first_line: int) -> None:
        """Take the rows of lines that are all good, which is faster than one by one."""
        self.rows, self.kinds = [row for row, _ in read], [kind for _, kind in read]
        self.sources = [f"{self.source}:{number}" for number in range(first_line, first_line + len(read))]

    def add_bad(self, line: int, offset: int, reason: BadRow, text: object) -> None:
        sample = text if isinstance(text, bytes | str) else repr(text)[:2000]
        self.bad.append(Bad(len(self.rows), line, offset, reason, sample))

    def __len__(self) -> int:
        return len(self.rows) + len(self.bad)


@dataclass
class OpenedSet:
    """A set whose format is known and whose rows are still to be read."""

    name: str
    port: Port
    format: DataFormat
    chunks: Iterator[Chunk]
    fraction: Callable[[], float]
    """Share of the bytes that were read so far."""
    facts: JsonObject = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    """Files of the folder that are not read, by extension."""
    why_empty: str = ""
