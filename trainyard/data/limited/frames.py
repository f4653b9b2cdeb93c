"""Messages between a reading process and its parent: four bytes of length, then msgpack. Errors cross by their fields.

What comes from a reading child is decoded into known types and never unpickled: a stranger's file may have taken the
child over.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterator

import msgspec

from trainyard.errors import Reason, Refused, TrainyardError, from_fields

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
