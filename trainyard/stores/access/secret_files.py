"""Files of records that are found by a secret: mode 0600, changed whole, and read again as soon as they change.

A record is stored under the SHA-256 of its secret. That is the right hash here: a secret is 256 random bits, which
nobody can try, so a slow hash (which slows guesses of words that people choose) would only cost each request its time.
Who reads the file learns no secret from it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import Corrupt
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.whole import new_file

SECRET_BYTES = 32
"""256 bits."""
Records = dict[str, dict[str, Any]]
"""Digest of the secret -> the record."""


def new_secret(prefix: str) -> str:
    """Return a new secret: the prefix, and 256 random bits in the letters of URLs."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """SHA-256 (hex) of a secret, under which its record is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def find_record(records: Mapping[str, JsonObject], secret: str) -> JsonObject | None:
    """Return the record of a secret; all records are compared, so that the time says nothing about them."""
    digest, match = hash_secret(secret), None
    for key, record in records.items():
        if hmac.compare_digest(key, digest):
            match = record
    return match


class SecretFile:
    """The records of one file; a process that only asks reads it again when it was replaced."""

    def __init__(
        self, path: Path, unpacked: Callable[[bytes, Path], Any], packed: Callable[[Records], JsonObject]
    ) -> None:
        """`unpacked` and `packed` are the reader and the writer of the file's kind."""
        self.path, self.unpacked, self.packed = path, unpacked, packed
        self._seen: tuple[int, int, int] | None = None
        self._records: Records = {}

    def records(self) -> Records:
        """Return what the file has now; empty without one. Raises `Corrupt`, `Conflict` (`E-SCHEMA`)."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._seen, self._records = None, {}
            return self._records
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._records = self.read()
            self._seen = seen
        return self._records

    def read(self) -> Records:
        try:
            records = self.unpacked(self.path.read_bytes(), self.path)["records"]
            if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
                raise ValueError("its records are not a mapping of mappings")
        except (ValueError, KeyError) as error:
            raise Corrupt(
                f"{self.path} cannot be read: {error}.", why="It was changed by hand, or its disk is broken.",
                do="Restore it from a backup, or remove it: what it names is then not accepted any more.",
            ) from error  # fmt: skip
        return records

    @contextmanager
    def changing(self) -> Iterator[Records]:
        """The records, to change; one process at a time. They are written when the block ends without an error."""
        with translate_os_errors(f"{self.path} was not changed"):
            make_folders(DISK, self.path.parent)
            if self.path.parent.stat().st_mode & 0o077:
                self.path.parent.chmod(0o700)
        with DISK.locked(self.path.with_name(f"{self.path.name}.lock")):
            records = dict(self.read()) if self.path.is_file() else {}
            yield records
            with translate_os_errors(f"{self.path} was not changed"), new_file(self.path) as temporary:
                temporary.unlink(missing_ok=True)
                descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    json.dump(self.packed(records), stream, indent=1, sort_keys=True)
