"""Storage of repositories: records that are compared and set, and contents that are written once.

    tenants/<tenant>/usage.json                                  bytes that the tenant takes, and reservations
    tenants/<tenant>/<models|datasets>/<name>/refs.json          branches and tags; only this record changes
    tenants/<tenant>/<models|datasets>/<name>/commits/<id>.json  immutable
    tenants/<tenant>/blobs/<xx>/<sha256>                         immutable, shared by the repositories of one tenant

`FolderStorage` is a folder of this machine, `BucketStorage` (`bucket.py`) any bucket that `obstore` speaks to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainyard.errors import Conflict
from trainyard.stores.files import DISK, Files, make_folders, translate_os_errors
from trainyard.stores.whole import BLOCK_BYTES, flush_name, write_whole

LOCKS = ".locks"


@dataclass(frozen=True)
class Record:
    """A small file and the version of its content."""

    data: bytes
    version: str


@dataclass(frozen=True)
class StoredFile:
    """A name with its size in bytes and the time of its last change."""

    name: str
    size: int
    modified: float


class Storage(Protocol):
    """Names are relative, with slashes, and were checked by the caller."""

    def read(self, name: str) -> Record | None:
        """Return a record; None if there is none."""

    def write(self, name: str, data: bytes, version: str | None) -> bool:
        """Write a record if it still has this version, None: if there is none. Return whether it was written."""

    def store_file(self, name: str, path: Path) -> bool:
        """Take a file over, whole and durably. Return False when the name exists, whose content is kept."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if there is none."""

    def read_range(self, name: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to, not including, `end`."""

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Yield every file below a folder."""

    def delete(self, name: str) -> None:
        """Remove a file, which may be gone already."""

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Exclusive between the threads of this process; in a folder, between processes, too.

        `name` is a level and a subject. Locks are taken in the order tenant, usage, record, one of each level.
        """


class ThreadLocks:
    """A lock for each name."""

    def __init__(self) -> None:
        self.guard, self.locks = threading.Lock(), dict[str, threading.RLock]()

    def find(self, name: str) -> threading.RLock:
        with self.guard:
            return self.locks.setdefault(name, threading.RLock())


class FolderStorage:
    """`Storage` in a folder."""

    def __init__(self, root: Path, files: Files = DISK) -> None:
        self.root, self.files = root, files
        self.locked_names = threading.local()
        make_folders(files, root / LOCKS)

    def read(self, name: str) -> Record | None:
        try:
            data = self.files.read(self.root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Record(data, hashlib.sha256(data).hexdigest())

    def write(self, name: str, data: bytes, version: str | None) -> bool:
        path = self.root / name
        with translate_os_errors(f"The record {name} was not written"), self.locked(f"record {name}"):
            current = self.read(name)
            if (current.version if current else None) != version:
                return False
            make_folders(self.files, path.parent)
            write_whole(self.files, path, data)
        return True

    def store_file(self, name: str, path: Path) -> bool:
        target = self.root / name
        with translate_os_errors(f"The content {path.name} was not stored"):
            make_folders(self.files, target.parent)
            self.files.fsync(path)
            try:
                self.files.rename_noreplace(path, target)
            except Conflict:
                self.files.unlink(path)
                flush_name(self.files, target)
                os.utime(target)
                return False
            flush_name(self.files, target)
        return True

    def size(self, name: str) -> int | None:
        try:
            return self.files.size(self.root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_range(self, name: str, start: int, end: int) -> Iterator[bytes]:
        with (self.root / name).open("rb") as stream:
            stream.seek(start)
            while start < end and (block := stream.read(min(BLOCK_BYTES, end - start))):
                start += len(block)
                yield block

    def list(self, prefix: str) -> Iterator[StoredFile]:
        for folder, _, names in os.walk(self.root / prefix):
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                with suppress(FileNotFoundError):  # removed meanwhile
                    facts = path.stat()
                    yield StoredFile(path.relative_to(self.root).as_posix(), facts.st_size, facts.st_mtime)

    def delete(self, name: str) -> None:
        path = self.root / name
        with suppress(FileNotFoundError):
            self.files.unlink(path)
            self.files.fsync_folder(path.parent)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        depths: dict[str, int] = self.locked_names.__dict__  # names that this thread has locked
        if depths.get(name):
            yield
            return
        digest = hashlib.sha256(name.encode()).hexdigest()[:2]
        with self.files.locked(self.root / LOCKS / f"{name.partition(' ')[0]}-{digest}"):
            depths[name] = 1
            try:
                yield
            finally:
                del depths[name]


class Staging:
    """The folder in which uploads arrive, on the disk of this machine; what a crash left is removed when it opens."""

    def __init__(self, root: Path, keep_s: float) -> None:
        self.root, self.keep_s = root, keep_s
        make_folders(DISK, root)
        self.sweep()

    def sweep(self) -> None:
        """Remove uploads that were not continued for `keep_s`."""
        for path in self.root.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > self.keep_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
