"""Tiles of a log on disk, as C2SP's tlog-tiles writes them, so that any static file server can serve a ledger.

checkpoint                  the signed head
tile/0/x001/067             256 leaf hashes; without a full tile: tile/0/x001/067.p/12
tile/1/004                  256 hashes of full tiles of level 0
tile/entries/x001/067       the entries of a tile of level 0, each after its length in two bytes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.errors import Corrupt
from trainyard.stores.files import Files
from trainyard.stores.ledger.merkle import SubtreeHash, hash_node

WIDTH, HEIGHT, HASH_BYTES = 256, 8, 32
MAX_ENTRY_BYTES = (1 << 16) - 1
ENTRIES = "entries"


@dataclass(frozen=True, order=True)
class Tile:
    """One tile: its level (`entries` for a bundle of entries), its number, and how many hashes it has."""

    level: str
    number: int
    width: int

    @property
    def path(self) -> str:
        digits = f"{self.number:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        parts = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        name = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
        return f"tile/{self.level}/{name}" + ("" if self.width == WIDTH else f".p/{self.width}")

    @property
    def start(self) -> int:
        return self.number * WIDTH


def list_tiles(size: int, since: int = 0) -> Iterator[Tile]:
    """Yield the tiles of a tree of `size` leaves that a tree of `since` leaves does not have: entries, then levels."""
    level, count, before = 0, size, since
    while count:
        for number in range(before // WIDTH, -(-count // WIDTH)):
            width = min(WIDTH, count - number * WIDTH)
            if number * WIDTH + width > before:
                yield from [Tile(ENTRIES, number, width)] if level == 0 else []
                yield Tile(str(level), number, width)
        level, count, before = level + 1, count // WIDTH, before // WIDTH


def pack_entries(entries: list[bytes]) -> bytes:
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def unpack_entries(data: bytes) -> list[bytes]:
    """Return the entries of a bundle. Raises `ValueError` where a length does not fit."""
    entries, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise ValueError("an entry is cut off")
        entries.append(data[at + 2 : end])
        at = end
    return entries


class TileReader:
    """The tiles of a log of `size` entries, each read once."""

    def __init__(self, folder: Path, size: int, files: Files) -> None:
        self.folder, self.size, self.files = folder, size, files
        self.read = cache(self._read)
        self.entries = cache(self._entries)

    def _read(self, tile: Tile) -> bytes:
        """Return the bytes of a tile; a full tile contains a partial one. Raises `Corrupt`, with its name."""
        full = Tile(tile.level, tile.number, WIDTH)
        for candidate in (tile, full):
            try:
                data = self.files.read(self.folder / candidate.path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if tile.level == ENTRIES:
                return data
            return data[: tile.width * HASH_BYTES] if candidate == full else data
        raise Corrupt(f"The ledger's file {tile.path} is missing.", do=RESTORE)

    def _entries(self, number: int) -> tuple[bytes, ...]:
        """Return the entries of a bundle."""
        tile = Tile(ENTRIES, number, min(WIDTH, self.size - number * WIDTH))
        try:
            entries = unpack_entries(self.read(tile))[: tile.width]
        except ValueError as error:
            raise Corrupt(f"The ledger's file {tile.path} cannot be read: {error}.", do=RESTORE) from None
        if len(entries) != tile.width:
            raise Corrupt(f"The ledger's file {tile.path} has {len(entries)} of {tile.width} entries.", do=RESTORE)
        return tuple(entries)

    def entry(self, index: int) -> bytes:
        return self.entries(index // WIDTH)[index % WIDTH]

    def hash_at(self, level: int, index: int) -> bytes:
        """Return a hash that a tile contains: level 0 has the leaves, level 1 their tiles."""
        number, count = index // WIDTH, self.size >> (HEIGHT * level)
        tile = Tile(str(level), number, min(WIDTH, count - number * WIDTH))
        data = self.read(tile)
        at = index % WIDTH * HASH_BYTES
        if len(data) != tile.width * HASH_BYTES:
            raise Corrupt(f"The ledger's file {tile.path} has another length than {tile.width} hashes.", do=RESTORE)
        return data[at : at + HASH_BYTES]

    @property
    def subtree(self) -> SubtreeHash:
        """Return the hash of any whole subtree, from the fewest tiles."""
        return subtree_of_tiles(self.hash_at)


RESTORE = "Run `trainyard ledger verify`, keep the folder as it is, and put it back from a backup or a copy."


def subtree_of_tiles(hash_at: Callable[[int, int], bytes]) -> SubtreeHash:
    """Return subtree hashes from the hashes that tiles contain; those between two tile levels are computed."""

    def subtree(level: int, index: int) -> bytes:
        if level % HEIGHT == 0:
            return hash_at(level // HEIGHT, index)
        return hash_node(subtree(level - 1, 2 * index), subtree(level - 1, 2 * index + 1))

    return subtree
