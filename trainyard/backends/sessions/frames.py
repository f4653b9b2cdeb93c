"""The frames between a session and its callers: a JSON header and bytes, over a Unix socket. Nothing is pickled.

    TYS1 | header length, u32 | body length, u64 | header, UTF-8 JSON | body, the bytes of a safetensors file

Both lengths are compared with their limits before anything is read. A reply is a frame as well: `{"reply": {…}}`, or
`{"error": {kind, code, what, why, do}}`, which the caller raises again.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from trainyard.cancellation import end_on_leaving, make_closer
from trainyard.errors import Conflict, InvalidInput, LimitExceeded, TrainyardError, from_fields
from trainyard.json_types import JsonMapping, JsonObject

MAGIC = b"TYS1"
LENGTHS = struct.Struct("!4sIQ")
MAX_HEADER_BYTES = 64 << 20
"""A header contains a batch as lists of numbers: some ten million tokens."""
MAX_BODY_BYTES = 1 << 30
PIECE_BYTES = 1 << 20
MAX_PATH_BYTES = 100
"""Of a socket's path: Linux allows 107 (`unix(7)`), macOS 103."""


@dataclass(frozen=True)
class Frame:
    """A message: a header and a body, sent together."""

    header: JsonObject
    body: bytes = b""


def send_frame(connection: socket.socket, header: Mapping[str, object], body: bytes = b"") -> None:
    """Send one frame. Raises `LimitExceeded` (`E-LIMIT`) for one that no receiver takes, and then nothing is sent."""
    text = orjson.dumps(header)
    require_lengths(len(text), len(body))
    connection.sendall(LENGTHS.pack(MAGIC, len(text), len(body)) + text)
    if body:
        connection.sendall(body)


def receive_frame(connection: socket.socket) -> Frame | None:
    """Return the next frame; None where the other side has closed the connection between two frames.

    Raises `InvalidInput` (`E-REQUEST-REFUSED`) for bytes that are not a frame, `LimitExceeded` (`E-LIMIT`).
    """
    first = receive_bytes(connection, LENGTHS.size, may_end=True)
    if not first:
        return None
    magic, header_bytes, body_bytes = LENGTHS.unpack(first)
    if magic != MAGIC:
        raise refused_frame_error(f"it begins with {magic!r}, not with {MAGIC!r}")
    require_lengths(header_bytes, body_bytes)
    text = receive_bytes(connection, header_bytes)
    body = receive_bytes(connection, body_bytes)
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise refused_frame_error(f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise refused_frame_error("its header is not a JSON object")
    return Frame(header, body)


def receive_bytes(connection: socket.socket, count: int, *, may_end: bool = False) -> bytes:
    """Exactly so many bytes; none where the other side ends before the first and `may_end` is set."""
    buffer = bytearray()
    while len(buffer) < count:
        piece = connection.recv(min(count - len(buffer), PIECE_BYTES))
        if not piece and may_end and not buffer:
            return b""
        if not piece:
            raise refused_frame_error(f"it ends after {len(buffer)} of {count} bytes")
        buffer += piece
    return bytes(buffer)


def require_lengths(header_bytes: int, body_bytes: int) -> None:
    for part, size, most in (("header", header_bytes, MAX_HEADER_BYTES), ("body", body_bytes, MAX_BODY_BYTES)):
        if size > most:
            raise LimitExceeded(
                f"The {part} of a call has {size:,} bytes, and at most {most:,} are read.",
                do="Send fewer rows in a call; gradients add up over several.",
                code="E-LIMIT",
            )


def refused_frame_error(why: str) -> InvalidInput:
    return InvalidInput(
        "This is not a call of a session.", why=why, do="Use the session operations of Trainyard.",
        code="E-REQUEST-REFUSED",
    )  # fmt: skip


def error_header(error: TrainyardError) -> dict[str, object]:
    return {"error": {"kind": type(error).__name__, **error.as_dict()}}


def ask(path: str, header: JsonMapping, body: bytes = b"", *, timeout_s: float | None = None) -> JsonObject:
    """Return the reply to one call; a caller who leaves ends it.

    Raises the error of the session, and `Conflict` (`E-SESSION-STATE`) if nobody answers.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            connection.settimeout(timeout_s)
            with end_on_leaving(make_closer(connection)):
                send_frame(connection, header, body)
                answer = receive_frame(connection)
    except OSError as error:
        raise lost_session_error(str(error)) from error
    if answer is None:
        raise lost_session_error("it ended during the call")
    if "error" in answer.header:
        raise from_fields(answer.header["error"])
    reply: JsonObject = answer.header["reply"]
    return reply


class SessionLost(Conflict):
    """A session that ended, or was killed, while it was called."""


def lost_session_error(why: str) -> SessionLost:
    return SessionLost(
        "The session does not answer.", why=why,
        do="Look at its state by `trainyard sessions show`, and continue it by `trainyard sessions resume`.",
        code="E-SESSION-STATE",
    )  # fmt: skip
