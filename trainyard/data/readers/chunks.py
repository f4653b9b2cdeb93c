"""What every row reader yields: a chunk of rows in file order, with the bad ones between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainyard.data.formats import Kind, Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.rows import Row

CHUNK_ROWS = 1000


class Bad(NamedTuple):
    """A row for the quarantine. `before` counts the good rows of its chunk that stand before it."""

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
    places: list[str] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)

    def add(self, normalise: Normaliser, record: Mapping[str, Any] | BadRow, line: int, offset: int, text: Any) -> None:
        """Normalise one record; what cannot be read becomes a bad row. `text` is shown in the quarantine."""
        try:
            if isinstance(record, BadRow):
                raise record
            row, kind = normalise(record)
        except BadRow as reason:
            self.bad.append(Bad(len(self.rows), line, offset, reason, shown(text)))
            return
        self.rows.append(row)
        self.kinds.append(kind)
        self.places.append(f"{self.source}:{line}")

    def __len__(self) -> int:
        return len(self.rows) + len(self.bad)


def shown(text: Any) -> bytes | str:
    return text if isinstance(text, bytes | str) else repr(text)[:2000]
