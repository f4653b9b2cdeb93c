"""Contract of remote sets: the revision, its files, and one of the files as a local path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from trainyard.settings import Settings


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set."""

    name: str
    size: int | None = None
    version: str = ""
    """What changes with its bytes: an ETag or a generation; empty where the revision of the set says it."""


@dataclass(frozen=True)
class Pin:
    """A set elsewhere as it was listed."""

    address: str
    revision: str
    """Commit of a data set, or the digest of a listing."""
    files: tuple[RemoteFile, ...]
    run: str = ""
    """The run that listed it."""

    @property
    def digest(self) -> str:
        value = [self.address, self.revision, [asdict(file) for file in self.files]]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()


class RemotePlace(Protocol):
    """A place with files."""

    @property
    def address(self) -> str:
        """Return what a person calls it; has no secrets."""

    @property
    def lasting(self) -> bool:
        """Whether a pin stays right: the files of a commit do not change, those of a bucket may."""

    def require_access(self, settings: Settings) -> None:
        """Raise `Refused` for a place that the operator does not let chains read."""

    def look_up(self) -> tuple[str, Sequence[RemoteFile]]:
        """(revision, files in the order of reading). Asks the network."""

    def fetch(self, pin: Pin, file: RemoteFile, folder: Path) -> tuple[Path, Path]:
        """(local path, folder in which it and the target of its link are). `folder` is for what is not cached."""
