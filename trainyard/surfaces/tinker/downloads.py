"""Weights that leave: a checkpoint as a PEFT adapter, file by file or as one archive, behind links that expire.

A link has a random code of 256 bits and needs no token, as the SDK fetches it without one.
"""

from __future__ import annotations

import secrets
import tarfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import NotFound

VALID_S = 900.0


@dataclass(frozen=True)
class Link:
    """A file that may be fetched for a while."""

    path: Path
    expires: float
    """On the monotonic clock: the wall clock may be set."""
    temporary: bool = False
    """Whether the file is removed with its link."""


class Downloads:
    """The links of all tenants. Safe for threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.links: dict[str, Link] = {}

    def add(self, path: Path, *, temporary: bool = False) -> tuple[str, float]:
        """Return the code of a new link and the time at which it expires; links that have expired are removed."""
        now = time.monotonic()
        with self.lock:
            for code, link in list(self.links.items()):
                if link.expires <= now:
                    del self.links[code]
                    if link.temporary:
                        link.path.unlink(missing_ok=True)
            code = secrets.token_urlsafe(32)
            self.links[code] = Link(path, now + VALID_S, temporary)
        return code, time.time() + VALID_S

    def find(self, code: str) -> Path:
        """Return the file of a link. Raises `NotFound` (`E-NOT-FOUND`) for one that has expired, or never was."""
        with self.lock:
            link = self.links.get(code)
        if link is None or link.expires <= time.monotonic() or not link.path.is_file():
            raise NotFound("This link has expired.", do="Request another one.", code="E-NOT-FOUND")
        return link.path

    def pack(self, folder: Path) -> Path:
        """Write the files of a folder into an archive, and return it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        archive = self.folder / f"{secrets.token_hex(16)}.tar"
        with tarfile.open(archive, "w") as tar:
            for path in list_files(folder):
                tar.add(path, arcname=str(path.relative_to(folder)))
        return archive


def list_files(folder: Path) -> list[Path]:
    """Return the files of an export, without the manifest that only this home reads."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
