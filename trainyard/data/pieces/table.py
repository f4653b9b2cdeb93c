"""The kinds of pieces, and doing them one after another in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.data.pieces import documents, rows
from trainyard.data.pieces.contract import Piece, Work, open_piece, run_piece

KINDS: Mapping[str, Work] = {rows.KIND: rows.check_rows, documents.KIND: documents.find_pairs}
"""Kind of a piece -> what its worker does."""


@dataclass(frozen=True)
class InOrder:
    """Does the pieces in this process, one after another."""

    pieces: int

    def __call__(self, kind: str, pieces: Sequence[Piece], shared: Path) -> Iterator[Path]:
        for piece in pieces:
            yield open_piece(shared, run_piece(KINDS[kind], piece, shared))
