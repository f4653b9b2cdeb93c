"""The document ledger: which documents are in the graph already, once and for all, across nights and crashes.

    {"sha256":"…","entry":{"key":{"content_sha256":…,"stream":…,"version":…},"name":…,"status":"done",…}}

An append-only file, one line and one checksum an entry, flushed to the disk before `record` returns. A key is the
content's hash, the stream, and the version of prompt and model: an edited document or a new prompt is a new key. The
graph is written first (its upsert adds nothing the second time), then the ledger; a crash between the two replays one
document and changes nothing.

A line that a crash tore is at the end, was never acknowledged, and is cut off. Cost: one append and one fsync a
commit, so the disk's fsync rate is the limit; `record_many` shares one fsync among a group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson

from trainyard.callbacks import ignore
from trainyard.errors import Corrupt, InvalidInput, Unavailable
from trainyard.stores.clock import Clock, RealClock
from trainyard.stores.files import DISK, Files, make_folders, translate_os_errors
from trainyard.stores.schema import add_version, strip_version

POINTS = ("ledger.appending", "ledger.appended", "ledger.flushed")
"""Where `at` is called."""
MOST_REASON = 2_000
"""Maximum characters of a quarantine reason, which may quote a model's reply."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD, _MIDDLE, _TAIL = b'{"sha256":"', b'","entry":', b"}"
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)


@dataclass(frozen=True)
class DocumentKey:
    """Key of a finished document: its content, the stream it came by, and who read it."""

    content_sha256: str
    stream: str
    version: str
    """Of prompt, schema and model together."""


@dataclass(frozen=True)
class Entry:
    """Outcome of one document."""

    key: DocumentKey
    name: str
    """The document's name within its stream, such as `2027/standup.md`."""
    status: Literal["done", "quarantined"] = "done"
    reason: str = ""
    """Why it was quarantined."""
    entities: int = 0
    relations: int = 0
    night: str = ""
    """The run that did it."""
    at: float = 0.0
    """Unix seconds; 0 lets the ledger fill it in."""


class DocumentLedger:
    """The ledger in one file. Safe for concurrent processes: `record` first reads what others have added."""

    def __init__(
        self,
        path: Path,
        files: Files = DISK,
        clock: Clock | None = None,
        *,
        at: Callable[[str], None] = ignore,
    ) -> None:
        self.path, self.files, self.at = path, files, at
        self._lock = path.with_name(f".{path.name}.lock")
        self.clock: Clock = clock or RealClock()
        self._entries: dict[DocumentKey, Entry] = {}
        self._names: dict[tuple[str, str], Entry] = {}
        self._offset = 0
        self._suspect = False
        make_folders(self.files, path.parent)
        self.refresh()

    def refresh(self) -> None:
        """Read what other processes added, and cut off what a crash tore.

        Raises `Corrupt` (`E-CORRUPT`) when a line amid valid ones does not match its checksum.
        """
        with translate_os_errors("The document ledger was not read"), self.files.locked(self._lock):
            self._catch_up()

    def done(self, key: DocumentKey, name: str = "") -> bool:
        """Whether this document needs no work any more (done, or quarantined for this very version).

        With its `name` given, a document that was edited and then put back as it was counts as not done: the graph
        contains the edited text.
        """
        if key not in self._entries:
            return False
        latest = self._names.get((key.stream, name)) if name else None
        return latest is None or latest.key == key

    def record(self, entry: Entry) -> bool:
        """Append one entry durably; False when it is there already. Raises as `translate_os_errors` does."""
        return self.record_many([entry]) == 1

    def record_many(self, entries: Iterable[Entry]) -> int:
        """Append entries with one fsync and return how many; after a crash, a prefix of them may be there."""
        checked = [check_entry(entry) for entry in entries]
        with translate_os_errors("The document ledger was not written"), self.files.locked(self._lock):
            self._catch_up()
            new = [self._stamp(entry) for entry in dict.fromkeys(checked) if not self._has(entry)]
            if new:
                self._append(b"".join(to_line(entry) for entry in new))
            for entry in new:
                self._take(entry)
            return len(new)

    def entries(self) -> list[Entry]:
        """Return the latest entry of every key, oldest key first."""
        return list(self._entries.values())

    def current(self) -> list[Entry]:
        """Return the latest entry of every document name: the source of the graph."""
        return list(self._names.values())

    def status(self, name: str, stream: str | None = None) -> Entry | None:
        """Return the latest entry under a document's name; of any stream when none is named."""
        if stream is not None:
            return self._names.get((stream, name))
        entries = [entry for (_, key), entry in self._names.items() if key == name]
        return max(entries, key=lambda entry: entry.at, default=None)

    def _stamp(self, entry: Entry) -> Entry:
        return entry if entry.at else replace(entry, at=self.clock.now())

    def _has(self, entry: Entry) -> bool:
        there = self._names.get((entry.key.stream, entry.name))
        return there is not None and (there.key, there.status) == (entry.key, entry.status)

    def _take(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self._names[entry.key.stream, entry.name] = entry

    def _append(self, data: bytes) -> None:
        """All of it reaches the disk, or none of it counts: bytes of a failed write or flush are cut off again."""
        first = not self.files.exists(self.path)
        self.at("ledger.appending")
        try:
            self.files.append(self.path, data)
            self.at("ledger.appended")
            self.files.fsync(self.path)
            if first:
                self.files.fsync_folder(self.path.parent)
        except OSError:
            # After a failed fsync the kernel may call the pages clean: what was read back would be no proof.
            self._suspect = True
            if self.files.exists(self.path):
                self.files.truncate(self.path, self._offset)
            self._suspect = False
            raise
        self._offset += len(data)
        self.at("ledger.flushed")

    def _catch_up(self) -> None:
        if self._suspect:
            raise Unavailable(
                f"The document ledger {self.path.name} takes no more entries.",
                why="A write failed, and so did taking it back.",
                do="Check the disk, then start the night again: it reads the ledger from the start.",
                code="E-DISK-ERROR",
            )
        size = self.files.size(self.path) if self.files.exists(self.path) else 0
        if size < self._offset:
            self._offset = 0
            self._entries.clear()
            self._names.clear()
        if size == self._offset:
            return
        read = self.files.read(self.path)
        entries, good = read_lines(self.path.name, read[self._offset :])
        for entry in entries:
            self._take(entry)
        self._offset += good
        if self._offset < size:
            self.files.truncate(self.path, self._offset)
        self.files.fsync(self.path)  # what a killed process wrote counts from now on, so it has to be on the disk


def content_sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_entry(entry: Entry) -> Entry:
    """Raises `InvalidInput` (`E-CORRUPT`)."""
    if not _SHA256.fullmatch(entry.key.content_sha256) or not entry.name or not entry.key.stream:
        raise InvalidInput(
            f"The ledger entry of {entry.name!r} is not complete.",
            why="It needs the content's SHA-256 (64 hexadecimal digits), a stream and a name.",
            do="Give all three.",
            code="E-CORRUPT",
        )
    if len(entry.reason) > MOST_REASON:
        return replace(entry, reason=entry.reason[: MOST_REASON - 1] + "…")
    return entry


def to_line(entry: Entry) -> bytes:
    """Return the entry as one line with its checksum. Invalid Unicode is replaced, since JSON cannot encode it."""
    fields = {**vars(entry), "key": vars(entry.key), "name": _clean(entry.name), "reason": _clean(entry.reason)}
    body = orjson.dumps(add_version("document", fields))
    return b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL, b"\n"))


def from_line(line: bytes) -> Entry | None:
    """Return the entry of a line without its newline; None when the checksum does not match."""
    body = line[_BODY_AT : -len(_TAIL)]
    if line != b"".join((_HEAD, hashlib.sha256(body).hexdigest().encode(), _MIDDLE, body, _TAIL)):
        return None
    fields = strip_version("document", orjson.loads(body), "An entry of the document ledger")
    return Entry(**{**fields, "key": DocumentKey(**fields["key"])})


def read_lines(name: str, data: bytes) -> tuple[list[Entry], int]:
    """(the entries, bytes up to the end of the last valid line). Raises `Corrupt` (`E-CORRUPT`)."""
    lines = data.split(b"\n")[:-1]
    entries = [from_line(line) for line in lines]
    bad = next((number for number, entry in enumerate(entries) if entry is None), len(entries))
    if any(entry is not None for entry in entries[bad:]):
        raise Corrupt(
            f"An entry of the document ledger {name} does not match its checksum.",
            why=f"The damaged line is number {bad + 1} of those read now, and valid ones follow it.",
            do="Restore the file, or move it away: the documents are read again and the graph stays as it is.",
            code="E-CORRUPT",
        )
    return [entry for entry in entries[:bad] if entry is not None], sum(len(line) + 1 for line in lines[:bad])


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
