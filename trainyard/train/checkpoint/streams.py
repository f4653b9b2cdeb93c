"""Streams of checkpoint bytes to the disk: as they are, or sealed by a key; with their SHA-256 in one pass.

The digest is that of the bytes on the disk, so a checkpoint is verified without the key. Imports no cryptography: who
has a key brings the `Sealer` (`cipher.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

from trainyard.errors import Corrupt

Data = bytes | bytearray | memoryview
SEALED = b"TYE1"
"""First bytes of a sealed file."""


class HashedStream(Protocol):
    """A file that is being written."""

    def write(self, data: Data) -> object: ...

    def hexdigest(self) -> str:
        """Return the SHA-256 of the bytes on the disk, once the file is closed."""


class Sealer(Protocol):
    """A key."""

    def open_sealed(self, path: Path) -> AbstractContextManager[HashedStream]:
        """Open a file in which everything is encrypted."""

    def unseal(self, path: Path) -> bytes:
        """Return the decrypted bytes of a sealed file. Raises `Corrupt` for another key."""


class PlainStream:
    """Writes bytes as they are."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.hasher = stream, hashlib.sha256()

    def write(self, data: Data) -> None:
        self.hasher.update(data)
        self.stream.write(data)

    def hexdigest(self) -> str:
        return self.hasher.hexdigest()


@contextmanager
def open_plain(path: Path) -> Iterator[HashedStream]:
    with path.open("wb") as stream:
        yield PlainStream(stream)


def open_stream(path: Path, sealer: Sealer | None) -> AbstractContextManager[HashedStream]:
    return open_plain(path) if sealer is None else sealer.open_sealed(path)


def write_bytes(path: Path, data: bytes, sealer: Sealer | None) -> str:
    """Write a file and return the SHA-256 of the bytes on the disk."""
    with open_stream(path, sealer) as stream:
        stream.write(data)
    return stream.hexdigest()


def is_sealed(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(SEALED)) == SEALED


def read_bytes(path: Path, sealer: Sealer | None) -> bytes:
    """Return the plain bytes of a file. Raises `Corrupt` (`E-CHECKPOINT-MISMATCH`) without its key."""
    if not is_sealed(path):
        return path.read_bytes()
    if sealer is None:
        raise Corrupt(
            f"{path.parent.name} is encrypted, and there is no key.",
            do="Set checkpoint_key in trainyard.toml to the key that it was written with.",
            code="E-CHECKPOINT-MISMATCH",
        )
    return sealer.unseal(path)
