"""Entries that could not be written: kept next to the ledger, and added with the next entry.

    access/unledgered.jsonl     an entry a line: {draft, time, code}
    access/unledgered.reserve   32 KiB, removed when the disk is full, so that the line still finds place

A step that is done is not undone because the disk is full or the key is lost. What it leaves here is named by
`ledger log` and `ledger verify`, and its later entry says when the step was, and why it is late.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import canonical_json
from trainyard.stores.files import DISK, NO_SPACE, make_folders
from trainyard.stores.ledger.log import LATE, Ledger, Receipt

RESERVE_BYTES = 32 << 10


@dataclass(frozen=True)
class UnledgeredEntry:
    """An entry that is not in the ledger yet."""

    draft: JsonObject
    time: float
    """Of its step."""
    code: str
    """Of the error that kept it out."""

    @property
    def late_draft(self) -> JsonObject:
        return {**self.draft, LATE: {"time": self.time, "code": self.code}}


@dataclass(frozen=True)
class UnledgeredFile:
    """The entries of one home that are not in its ledger yet."""

    path: Path

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> UnledgeredFile:
        return cls(ledger.key_file.with_name("unledgered.jsonl"))

    @property
    def reserve(self) -> Path:
        return self.path.with_suffix(".reserve")

    @contextmanager
    def locked(self) -> Iterator[None]:
        make_folders(DISK, self.path.parent)
        with DISK.locked(self.path.with_suffix(".lock")):
            yield

    def read(self) -> list[UnledgeredEntry]:
        """Return the entries; a line that was cut off is none."""
        entries = []
        for line in self.path.read_bytes().splitlines() if self.path.is_file() else ():
            with suppress(ValueError, KeyError, TypeError):  # a line that a full disk has cut off
                value = json.loads(line)
                entries.append(UnledgeredEntry(dict(value["draft"]), float(value["time"]), str(value["code"])))
        return entries

    def add(self, entry: UnledgeredEntry) -> None:
        """Keep an entry, unless it is kept already. Raises `OSError` where even the reserve is not enough."""
        line = canonical_json({"draft": entry.draft, "time": entry.time, "code": entry.code}) + b"\n"
        with self.locked():
            if any(kept.draft["key"] == entry.draft["key"] for kept in self.read()):
                return
            try:
                self._append(line)
            except OSError as error:
                if error.errno not in NO_SPACE or not self.reserve.is_file():
                    raise
                self.reserve.unlink()
                self._append(line)

    def _append(self, line: bytes) -> None:
        """Add a whole line, or leave the file as it was."""
        before = self.path.read_bytes() if self.path.is_file() else b""
        size, torn = len(before), before and not before.endswith(b"\n")
        try:
            DISK.append(self.path, b"\n" + line if torn else line)  # a writer that was killed left half a line
            DISK.fsync(self.path)
        except OSError:
            with suppress(OSError):  # the first error counts
                os.truncate(self.path, size)
            raise

    def make_reserve(self) -> None:
        """Take place on the disk for a later line, where it can be had."""
        if self.reserve.is_file():
            return
        with suppress(OSError):  # a disk that is full now has no reserve
            make_folders(DISK, self.path.parent)
            DISK.write(self.reserve, os.urandom(RESERVE_BYTES))  # no file system stores it in fewer blocks

    def heal(self, append: Callable[..., list[Receipt]], drafts: Sequence[JsonMapping]) -> list[Receipt]:
        """Append what was kept, and then `drafts`, in one commit; return the receipts of `drafts`."""
        if not self.path.is_file():
            return append(*drafts)
        with self.locked():
            late = [entry.late_draft for entry in self.read()]
            try:
                receipts = append(*late, *drafts)[len(late) :]
            except (InvalidInput, LimitExceeded) as error:
                if is_disk_full(error):
                    raise
                return append(*drafts)  # what is kept was changed by hand, and stays for the operator to look at
            self.path.unlink(missing_ok=True)
        return receipts


def is_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    return isinstance(error, TrainyardError) and error.code == "E-DISK-FULL"


def may_heal(error: BaseException) -> bool:
    """Return whether an entry that failed may be written later: the entry itself is not what is wrong."""
    if isinstance(error, InvalidInput):
        return False
    return is_disk_full(error) or not isinstance(error, LimitExceeded)
