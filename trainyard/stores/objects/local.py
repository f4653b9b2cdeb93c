"""An object store in a folder, with the same preconditions, generations and checksums as a bucket.

    <root>/acme/coder/v3/manifest.json           the bytes, under the name that people expect
    <root>/.objects/acme/coder/v3/manifest.json  {now: {generation, size, crc32c, metadata}, next: …}

A write says what comes (`next`), then renames the new bytes into place, then says that it came (`now`). A crash between
the two is settled by the checksum of the bytes that are there: they are the old ones or the new ones, never a mixture.
Generations count up from 1 for each name and are never used again, also after a removal. One lock for the whole store,
which the kernel gives back when its holder dies: a folder store is for one machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt, InvalidInput
from trainyard.stores.files import DISK, Files, make_folders, require_inside, translate_os_errors
from trainyard.stores.objects import store
from trainyard.stores.objects.store import Metadata, ObjectInfo, check_name, crc32c
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_whole

BOOKS = ".objects"
LOCK_FILE = ".lock"
POINTS = ("object.bytes-written", "object.announced", "object.renamed", "object.settled")
"""Where `at` is called."""


@dataclass(frozen=True)
class Book:
    """Record of the store about one name."""

    last: int = 0
    """The highest generation that was given out."""
    now: ObjectInfo | None = None
    next: ObjectInfo | None = None

    def to_json(self) -> bytes:
        parts = {word: vars(info) if info else None for word, info in (("now", self.now), ("next", self.next))}
        return json.dumps(add_version("object", {"last": self.last, **parts}), sort_keys=True).encode()

    @staticmethod
    def from_json(name: str, content: bytes) -> Book:
        """Raises `Corrupt` (`E-CORRUPT`)."""
        try:
            fields = read_versioned("object", content, f"The record of the object {name}")
            now, coming = (ObjectInfo(**fields[word]) if fields[word] else None for word in ("now", "next"))
            return Book(fields["last"], now, coming)
        except (ValueError, TypeError, KeyError) as error:
            raise Corrupt(
                f"What the store knows about the object {name} cannot be read.",
                why=f"{type(error).__name__}: {error}",
                do=f"Move {BOOKS}/{name} away and publish the object again.",
                code="E-CORRUPT",
            ) from error


class FolderStore:
    """`ObjectStore` in a folder."""

    def __init__(self, root: Path, files: Files = DISK, *, at: Callable[[str], None] = ignore) -> None:
        self.root, self.files, self.at = root, files, at

    def put(
        self, name: str, data: bytes | Path, *, if_generation_match: int | None = None, metadata: Metadata = None
    ) -> ObjectInfo:
        path = self._path(name)
        content = data if isinstance(data, bytes) else self.files.read(data)
        with translate_os_errors(f"The object {name} was not written"), self._locked():
            book = self._book(name)
            expect(name, if_generation_match, book.now)
            info = ObjectInfo(name, book.last + 1, len(content), crc32c(content), dict(metadata or {}))
            self._make_folder(path.parent, name)
            temporary = path.with_name(f".{path.name}.tmp")
            self.files.write(temporary, content)
            self.files.fsync(temporary)
            self.at("object.bytes-written")
            self._keep(Book(info.generation, book.now, info), name)
            self.at("object.announced")
            self.files.replace(temporary, path)
            self.files.fsync_folder(path.parent)
            self.at("object.renamed")
            self._keep(Book(info.generation, info), name)
            self.at("object.settled")
            return info

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        path = self._path(name)
        with self._locked():
            info = self._book(name).now
            if info is None or generation not in (None, info.generation):
                raise store.object_missing(name, generation)
            content = self.files.read(path)
        if (checksum := crc32c(content)) != info.crc32c:
            raise store.object_corrupt(name, info.crc32c, checksum)
        return content

    def download(self, name: str, path: Path) -> ObjectInfo:
        content = self.get(name)
        with translate_os_errors(f"The object {name} was not stored as {path.name}"):
            make_folders(self.files, path.parent)
            write_whole(self.files, path, content)
        info = self.head(name)
        if info is None:
            raise store.object_missing(name)
        return info

    def head(self, name: str) -> ObjectInfo | None:
        self._path(name)
        with self._locked():
            return self._book(name).now

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        with self._locked():
            names = [name for name in self._names(self.root / BOOKS, "") if name.startswith(prefix)]
            infos = [self._book(name).now for name in sorted(names)]
        return [info for info in infos if info is not None]

    def delete(self, name: str, *, if_generation_match: int | None = None) -> bool:
        path = self._path(name)
        with translate_os_errors(f"The object {name} was not removed"), self._locked():
            book = self._book(name)
            expect(name, if_generation_match, book.now)
            if book.now is None:
                return False
            self.files.unlink(path)
            self.files.fsync_folder(path.parent)
            self.at("object.renamed")
            self._keep(Book(book.last), name)
            self.at("object.settled")
            return True

    def _path(self, name: str) -> Path:
        """Where the bytes are, after a check that neither the name nor a link leads out of the root."""
        return require_inside(self.root, self.root / check_name(name), f"The object {name}", "its store")

    def _book(self, name: str) -> Book:
        """Return the settled facts: after a crash the bytes themselves show whether the announced write happened."""
        book_file = self.root / BOOKS / name
        if not self.files.exists(book_file) or self.files.is_folder(book_file):
            return Book()
        book = Book.from_json(name, self.files.read(book_file))
        path = self.root / name
        if not self.files.exists(path):
            return Book(book.last)
        if book.next is None:
            return book
        came = crc32c(self.files.read(path)) == book.next.crc32c
        return Book(book.last, book.next if came else book.now)

    def _keep(self, book: Book, name: str) -> None:
        book_file = self.root / BOOKS / name
        self._make_folder(book_file.parent, name)
        write_whole(self.files, book_file, book.to_json())

    def _make_folder(self, folder: Path, name: str) -> None:
        try:
            make_folders(self.files, folder)
        except (NotADirectoryError, FileExistsError) as error:
            raise InvalidInput(
                f"The object {name} cannot lie below another object.",
                why=f"{folder.name} is an object, and a folder cannot have the same name.",
                do="Choose a name that does not continue another one's.",
                code="E-NAME",
            ) from error

    def _names(self, folder: Path, prefix: str) -> Iterator[str]:
        if not self.files.is_folder(folder):
            return
        for name in self.files.listdir(folder):
            if name.startswith("."):
                continue
            if self.files.is_folder(folder / name):
                yield from self._names(folder / name, f"{prefix}{name}/")
            else:
                yield prefix + name

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folders(self.files, self.root / BOOKS)
        with self.files.locked(self.root / BOOKS / LOCK_FILE):
            yield


def expect(name: str, generation: int | None, there: ObjectInfo | None) -> None:
    """Raises `Conflict` when the object is not the one that the caller means (0: that there is none)."""
    if generation is not None and generation != (there.generation if there else 0):
        raise store.precondition_failed(name, generation, there)
