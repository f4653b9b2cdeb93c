"""The audit log: a line for everything that changed something, under TRAINYARD_HOME/audit, for this home's owner alone.

    audit-000001.jsonl    one JSON object a line: {seq, id, phase, time, …, previous, hash}
    head.json             the last line's seq and hash, written over after each line

`hash` is the SHA-256 of the line without it, and `previous` is the hash of the line before, in the file before where a
file begins. A line that was changed, removed, added or moved no longer fits, and lines that are missing at the end no
longer fit the head: `verify_log` finds both. Who can write the folder can write all of it again, so a copy of the head
elsewhere is what proves more.

Durability: a line is with the kernel when `append` returns, so it survives every end of a process. It is on the disk
(fsync) at once where the caller asks for it, and at the latest with the first line a second after the last fsync: a
power cut may take the lines of one second, which `verify_log` then reports.

Files are cut at 16 MiB and never removed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from trainyard.cancellation import iterate_until_departure
from trainyard.errors import Corrupt
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors

MAX_FILE_BYTES = 16 << 20
TAIL_BYTES = 64 << 10
"""A line is shorter."""
FLUSH_EVERY_S = 1.0
BEGINNING = "0" * 64
"""Value of `previous` in the first line of all."""
HEAD_BYTES = 128
"""Length of head.json, spaces included: it is written over in place."""


@dataclass(frozen=True)
class LogVerification:
    """Result of verifying the whole log."""

    files: int
    lines: int
    first: int
    last: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogEnd:
    """End of a log: its newest file, how long that is, and number and hash of the last line."""

    path: Path
    size: int
    seq: int
    digest: str

    def is_still(self, max_file_bytes: int) -> bool:
        """Whether no line was written since: a line makes this file longer, or begins another where it is full."""
        try:
            return os.stat(self.path).st_size == self.size < max_file_bytes
        except FileNotFoundError:
            return False


@dataclass
class AuditLog:
    """The log below one folder. Processes and threads that write take turns."""

    folder: Path
    max_file_bytes: int = MAX_FILE_BYTES
    flushed: float = field(default=0.0, init=False)
    """When this process flushed last, on the monotonic clock."""
    last_end: LogEnd | None = field(default=None, init=False)
    """The end after this process's last line. Reading it again takes longer than writing a line."""

    @cached_property
    def lock(self) -> Path:
        return self.folder / "lock"

    @cached_property
    def head(self) -> Path:
        return self.folder / "head.json"

    def append(self, entry: JsonMapping, *, flush: bool = False) -> None:
        """Add a line. Raises on the disk: `LimitExceeded` (`E-DISK-FULL`), `Unavailable` (`E-DISK-READ-ONLY`)."""
        with translate_os_errors("The audit log was not written"):
            self.keep_private()
            with DISK.locked(self.lock):
                self._append(entry, flush)

    def keep_private(self) -> None:
        """Make the folder, or take from it what others may do."""
        try:
            mode = os.stat(self.folder).st_mode if self.last_end is not None else 0o077
        except FileNotFoundError:
            mode = 0o077
        if mode & 0o077:
            make_folders(DISK, self.folder)
            self.folder.chmod(0o700)

    def _append(self, entry: Mapping[str, object], flush: bool) -> None:
        last_end, self.last_end = self.last_end, None
        is_known = last_end is not None and last_end.is_still(self.max_file_bytes)
        end = last_end if last_end is not None and is_known else find_end(self.folder)
        is_full = end.size >= self.max_file_bytes
        path = self.folder / log_name(parse_number(end.path) + 1) if is_full else end.path
        line, digest = seal_entry({"seq": end.seq + 1, **entry, "previous": end.digest})
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = end.size if is_known else os.fstat(descriptor).st_size
            torn = size > 0 and not is_known and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + line + b"\n"
            if os.write(descriptor, data) != len(data):  # the disk became full in the middle
                os.ftruncate(descriptor, size)
                raise OSError(28, os.strerror(28), str(path))
            now = time.monotonic()
            if flush or now - self.flushed >= FLUSH_EVERY_S:
                os.fsync(descriptor)
                self.flushed = now
        finally:
            os.close(descriptor)
        if is_full or not end.size:
            DISK.fsync_folder(self.folder)
        self._write_head(end.seq + 1, digest)
        self.last_end = LogEnd(path, size + len(data), end.seq + 1, digest)

    def _write_head(self, seq: int, digest: str) -> None:
        text = f'{{"seq": {seq}, "hash": "{digest}"}}'.ljust(HEAD_BYTES - 1) + "\n"
        descriptor = os.open(self.head, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, text.encode(), 0)
        finally:
            os.close(descriptor)

    def lines(self, *, newest_first: bool = False) -> Iterator[JsonObject]:
        """Yield every line that can be read; those that were cut off by a power cut are left out."""
        files = log_files(self.folder)
        for path in reversed(files) if newest_first else files:
            lines = iterate_until_departure(path.read_bytes().splitlines())
            rows = [value for data in lines if (value := parse_line(data)) is not None]
            yield from reversed(rows) if newest_first else rows


def log_name(number: int) -> str:
    return f"audit-{number:06d}.jsonl"


def parse_number(path: Path) -> int:
    return int(path.stem.removeprefix("audit-"))


def log_files(folder: Path) -> list[Path]:
    """Return the files of a log, the oldest first."""
    return sorted(folder.glob("audit-[0-9]*.jsonl"), key=parse_number)


def seal_entry(entry: Mapping[str, object]) -> tuple[bytes, str]:
    """Return a line with its hash, and the hash: the canonical form without it, into which it is put at its place.

    A value of bytes is in canonical form already: an entry may have eight kilobytes of fields, and two lines.
    """
    parts = [
        b'"%s":%s' % (name.encode(), value if isinstance(value, bytes) else canonical(value))
        for name, value in sorted(entry.items())
    ]
    digest = hashlib.sha256(b"{%s}" % b",".join(parts)).hexdigest()
    parts.insert(sum(name < "hash" for name in entry), b'"hash":"%s"' % digest.encode())
    return b"{%s}" % b",".join(parts), digest


CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def canonical(value: Any) -> bytes:
    """Return a value as its hash is computed: sorted keys, no spaces, ASCII."""
    if type(value) is str:  # as the encoder does, which takes long to begin
        return encode_basestring_ascii(value).encode()
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value).encode()
    return CANONICAL.encode(value).encode()


def parse_line(data: bytes) -> JsonObject | None:
    """Return a line as it was written; None for an incomplete one."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("seq"), int) and "hash" in value else None


def find_end(folder: Path) -> LogEnd:
    """Read where a log ends; a log without files ends before its first. Raises `Corrupt` as `last_line` does."""
    files = log_files(folder)
    path = files[-1] if files else folder / log_name(1)
    return LogEnd(path, path.stat().st_size if files else 0, *last_line(files))


def last_line(files: list[Path]) -> tuple[int, str]:
    """Number and hash of the last whole line; (0, `BEGINNING`) without one. Raises `Corrupt` where none is whole."""
    for path in reversed(files):
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            tail = stream.read()
        for data in reversed(tail.splitlines()):
            if (value := parse_line(data)) is not None:
                return int(value["seq"]), str(value["hash"])
        if size > TAIL_BYTES:
            raise Corrupt(
                f"The end of {path} cannot be read.", why="It was changed by hand, or its disk is broken.",
                do="Move the folder away and keep it: the next entry begins a new log.",
            )  # fmt: skip
    return 0, BEGINNING


def verify_log(folder: Path) -> LogVerification:
    """Read the whole log and say what does not fit."""
    problems: list[str] = []
    files = log_files(folder)
    seq, previous, count, first = 0, BEGINNING, 0, 0
    for path in files:
        for number, data in enumerate(iterate_until_departure(path.read_bytes().splitlines()), 1):
            value, where = parse_line(data), f"{path.name}:{number}"
            if value is None:
                problems.append(f"{where} is not a whole line: cut off by a power cut, or changed")
                continue
            count, first = count + 1, first or value["seq"]
            if canonical({**value, "hash": digest_without_hash(value)}) != data:
                problems.append(f"{where} was changed after it was written")
            if value.get("previous") != previous or value["seq"] != seq + 1:
                problems.append(
                    f"{where} does not follow the line before it: {seq + 1} is expected, it is {value['seq']}"
                )
            seq, previous = value["seq"], str(value["hash"])
    problems += head_problems(folder, seq, previous)
    return LogVerification(len(files), count, first, seq, tuple(problems))


def digest_without_hash(value: JsonMapping) -> str:
    return hashlib.sha256(canonical({key: entry for key, entry in value.items() if key != "hash"})).hexdigest()


def head_problems(folder: Path, seq: int, last_hash: str) -> list[str]:
    """Compare the end of the log with the head; it may be one line behind, if its writer was killed between the two."""
    try:
        head = json.loads((folder / "head.json").read_bytes())
        last, digest = int(head["seq"]), str(head["hash"])
    except FileNotFoundError:
        return ["head.json is missing, which names the last line"] if seq else []
    except (ValueError, KeyError, TypeError):
        return ["head.json cannot be read"]
    if last > seq:
        return [f"the last {last - seq} lines are missing: {last} were written, {seq} are there"]
    return ["the last line is not the one that head.json names"] if last == seq and digest != last_hash else []
