"""Requests to a reading process, and its answers. Torch-free and light: both sides import it.

Messages between a reading process and its parent: four bytes of length, then msgpack. Errors cross by their fields.

What comes from a reading child is decoded into known types and never unpickled: a stranger's file may have taken the
child over.
"""

from __future__ import annotations

import os
import select
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trainyard.data.quarantine import Balance
from trainyard.data.readers.selection import FileSelection
from trainyard.data.readers.streams import Limits
from trainyard.errors import Reason, Refused, TrainyardError, from_fields
from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import Death, find_death
from trainyard.spec.axes.data import DataFormat, Port

HEADER = struct.Struct("!I")
READ_BYTES = 1 << 20


class SentError(msgspec.Struct):
    """An error as it crosses the border."""

    kind: str
    what: str
    why: str = ""
    do: str = ""
    code: str = ""
    reasons: list[Reason] = []
    trace: str = ""
    """Traceback of an unexpected error, for the log."""


def pack_error(error: TrainyardError) -> SentError:
    reasons = list(getattr(error, "reasons", ()))
    return SentError(type(error).__name__, error.what, error.why, error.do, error.code, reasons)


def unpack_error(sent: SentError) -> TrainyardError:
    """Return the error itself, of the same class."""
    return Refused(sent.reasons, sent.what) if sent.reasons else from_fields(msgspec.structs.asdict(sent))


def write_frame(descriptor: int, payload: bytes) -> None:
    """Write one message. Raises `BrokenPipeError` when the reader is gone."""
    data = memoryview(HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(descriptor, data) :]


class Silence(Exception):
    """Timeout: no frame arrived for too long."""


class TooLong(Exception):
    """A message is longer than its sender may send."""


def read_frames(descriptor: int, most_bytes: int, wait_s: float | None = None) -> Iterator[bytes]:
    """Yield the messages until the other side closes. Raises `Silence` after `wait_s` without a byte, and `TooLong`.

    A message that the sender did not finish is left out.
    """
    buffer = bytearray()
    while True:
        start = 0
        while len(buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(buffer, start)
            if length > most_bytes:
                raise TooLong
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[start + HEADER.size : end])
            start = end
        del buffer[:start]
        if wait_s is not None and not select.select([descriptor], [], [], wait_s)[0]:
            raise Silence
        block = os.read(descriptor, READ_BYTES)
        if not block:
            return
        buffer += block


MOST_CHARS = 200_000
"""Characters of one text of a tuple; a longer one is a data dump, not something a person wrote."""


@dataclass(frozen=True)
class SetPlace:
    """Location of a set, and the folder of its rows."""

    path: Path
    """The real path of a file, a folder or a repository, inside one of `roots`."""
    roots: tuple[Path, ...]
    target: Path


@dataclass(frozen=True)
class SetRequest(SetPlace):
    """Read one set into a folder of `target` that is named by its port."""

    selection: FileSelection = field(default_factory=FileSelection)
    repository: bool = False
    """Whether the place is a git repository to be read as one."""
    format: DataFormat = DataFormat.AUTO
    named: Port | None = None
    name: str = ""
    """The file's name if `path` has another one."""
    limits: Limits = field(default_factory=Limits)
    deduplicate: bool = False
    files: tuple[Path, ...] = ()
    """The files of a set that has been fetched, in their order; `path` is then the folder above them."""
    query: str = ""
    """SQL over `tables`, whose rows are the set."""
    tables: Mapping[str, Path] = field(default_factory=dict)
    expected: tuple[Port, ...] = tuple(Port)
    """The ports that a set without a name may fill: those that its file's name let the chain expect."""

    converter: tuple[str, str] | None = None
    """Name and reference of an operator's function that converts each row."""
    columns: Mapping[Any, str] = field(default_factory=dict)
    """Field of a row -> the column that contains it."""

    @property
    def label(self) -> str:
        """Return what a message calls the request."""
        return self.name or self.path.name


@dataclass(frozen=True)
class CommitsRequest:
    """Read the engineering tuples of a repository's commits."""

    path: Path
    roots: tuple[Path, ...]
    briefs: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @property
    def label(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class ColumnsRequest:
    """Read the columns of the first rows of a file, or of the first file of a folder that has rows."""

    path: Path
    """The real path of a file or a folder, inside one of `roots`."""
    roots: tuple[Path, ...]
    limits: Limits = field(default_factory=Limits)

    @property
    def label(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class ParseItem:
    """Bytes that the caller has read: a document of a stream, or a line of a corpus."""

    data: bytes
    parser: str
    """A row of `PARSERS` in `trainyard/data/limited/jobs.py`."""
    most_chars: int = 0
    """Longest part of a document."""
    overlap_chars: int = 0
    """How much of a part is the end of the one before, at most."""


@dataclass(frozen=True)
class ParseRequest:
    """Parse many items, each under its own limits."""

    items: Sequence[ParseItem]
    limits: Limits = field(default_factory=Limits)

    @property
    def label(self) -> str:
        return f"A batch of {len(self.items):,} documents"


class ParsedItem(msgspec.Struct, array_like=True, omit_defaults=True):
    """Content of one item. Exactly one field is set."""

    parts: list[tuple[int, int]] = []
    """(start, end) of each part of a document, in characters of its text."""
    value: dict[str, str | list[dict[str, str]]] = {}
    """The tuple of a line."""
    unreadable: str = ""
    """Why there is neither."""


class SetReadResult(msgspec.Struct, tag=True):
    """A set that was read: what it is and what became of every row."""

    name: str
    port: Port
    format: DataFormat
    balance: Balance
    facts: JsonObject
    first: list[str]
    """The first few bad rows in words."""
    why_empty: str = ""


class CommitsResult(msgspec.Struct, tag=True):
    """The tuples of a repository, and how many commits gave none, by reason."""

    values: list[JsonObject]
    skipped: dict[str, int]
    commits: int


class ColumnsResult(msgspec.Struct, tag=True):
    """The columns of the first rows of a file, in its order, each with the beginning of its first value."""

    columns: dict[str, str]


class Answer(msgspec.Struct, omit_defaults=True):
    """A message of a reading process. Exactly one field is set, `text` next to `fraction` apart."""

    fraction: float | None = None
    text: str = ""
    result: SetReadResult | CommitsResult | ColumnsResult | list[ParsedItem] | None = None
    error: SentError | None = None
    ended: int | None = None
    """Wait status of the process that carried out the request; the last message of each."""
    ready: bool | None = None
    """The first message of all: whether the kernel refuses connections to this process."""


ANSWER_DECODER = msgspec.msgpack.Decoder(
    Answer, dec_hook=lambda kind, value: Counter(msgspec.convert(value, dict[str, int]))
)
"""Counters are the only type here that msgspec does not know."""
Request = SetRequest | CommitsRequest | ColumnsRequest | ParseRequest
Result = SetReadResult | CommitsResult | ColumnsResult | list[ParsedItem]
Parse = Callable[[Sequence[ParseItem]], list[ParsedItem]]
"""Returns one result for each item, in order."""


def describe_end(status: int) -> tuple[str, str] | None:
    """Return (reason, detail) of a wait status that is not success; None for success."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    if find_death(code) is Death.TIME:
        return "time_limit", "reading it took more CPU time than a file of its size may take"
    if code < 0:
        return "reader_crashed", f"its reader was ended by {signal.Signals(-code).name}"
    return "reader_crashed", f"its reader ended with exit code {code}"
