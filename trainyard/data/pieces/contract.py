"""The contract of pieces: work on one of them, the folder that it leaves, the function that has all of them done."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainyard.errors import Corrupt, NotFound
from trainyard.json_types import JsonObject

Piece = JsonObject
"""What a worker needs to know: paths, ranges and settings; never rows, never a secret."""
Work = Callable[[Piece, Path, Path], None]
"""(piece, shared folder, empty folder of the attempt) -> files in the latter."""
PIECES_FOLDER = ".pieces"
"""Name of the shared folder, below that of the result; it is removed before the result is committed."""


class FanOut(Protocol):
    """Has all pieces done. `pieces` is how many the caller should make of its work, if it can."""

    @property
    def pieces(self) -> int: ...

    def __call__(self, kind: str, pieces: Sequence[Piece], shared: Path) -> Iterator[Path]:
        """Yield the folder of each piece, in order. Raises the error of the first piece that has one."""


def run_piece(work: Work, piece: Piece, shared: Path) -> JsonObject:
    """Run one attempt at a piece in a folder of its own, and return the folder's name with the sizes of its files.

    Two attempts at a piece (its first worker was given up, but lives) never write to the same file. Raises `NotFound`
    (`E-DATA-NOT-FOUND`) on a worker that does not see the shared folder.
    """
    if not shared.is_dir():
        raise NotFound(
            f"The worker on {socket.gethostname()} does not see {shared}.",
            why="Pieces read rows and write results in the folder of the run, which every worker has to see.",
            do="Mount TRAINYARD_HOME at the same path on the hosts of all workers, or leave fan_out.address out.",
            code="E-DATA-NOT-FOUND",
        )
    folder = shared / uuid.uuid4().hex
    folder.mkdir()
    work(piece, shared, folder)
    return {"folder": folder.name, "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())}}


def open_piece(shared: Path, left: Mapping[str, object]) -> Path:
    """Return the folder of a finished piece. Raises `Corrupt` (`E-BATCH`) where its files are not as it left them."""
    folder, files = shared / str(left["folder"]), left["files"]
    assert isinstance(files, dict)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    if sizes != files:
        raise Corrupt(
            f"The files of a piece in {folder} are not those that its worker left: {sizes}, not {files}.",
            why="The shared folder shows another state here than on the worker.",
            do="Use a file system that shows a closed file to all hosts at once, such as NFS 4; then run again.",
            code="E-BATCH",
        )
    return folder


def split_evenly(weights: Sequence[int], pieces: int) -> list[tuple[int, int]]:
    """Return at most `pieces` ranges of consecutive items with about the same sum of weights; none is empty."""
    total, ranges, start, done = sum(weights), list[tuple[int, int]](), 0, 0
    for index, weight in enumerate(weights):
        done += weight
        if done * pieces >= total * (len(ranges) + 1) or index == len(weights) - 1:
            ranges.append((start, index + 1))
            start = index + 1
    return ranges
