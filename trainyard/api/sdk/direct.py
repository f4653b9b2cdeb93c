"""Calls of a service over HTTP/1.1 by kept sockets: one write for a request, httptools for its response.

httpx parses in Python and writes head and body apart. After a pause, a small call costs a client 1.5 ms that way and
0.5 ms this way. Streams, and services behind a proxy, are httpx's (`remote.py`).

RFC 9112; the errors are httpx's, as of any other transport.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from ssl import SSLContext

import httptools
import httpx

from trainyard.api.sdk.answers import ServiceAnswer
from trainyard.errors import InvalidInput
from trainyard.idle_connections import IdleConnections

KEPT_S = 4.0
"""uvicorn ends a connection that is idle for five seconds."""
MAX_KEPT = 16
MAX_HEAD_BYTES = 128 << 10
PIECE_BYTES = 256 << 10
PORTS = {"http": 80, "https": 443}
FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""RFC 9110, 5.5: without a line end, which would begin another field."""
LENGTHS = frozenset({b"content-length", b"transfer-encoding"})
"""A body without one of these ends with its connection."""


class DirectConnections:
    """The connections to one service, for any thread. Close them."""

    def __init__(
        self, base: httpx.URL, headers: Mapping[str, str], timeout: httpx.Timeout, context: SSLContext | None = None
    ) -> None:
        """`context` verifies the certificate of a service with TLS."""
        self.host, self.port = base.raw_host.decode("ascii"), base.port or PORTS[base.scheme]
        self.timeout, self.context = timeout, context
        self.head = b"host: " + base.netloc + b"\r\n" + fields_of(headers)
        self.idle = IdleConnections(KEPT_S, MAX_KEPT)

    def send(self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes | None) -> ServiceAnswer:
        """The whole answer. Raises `httpx.TransportError`."""
        message = self.message(method, url.raw_path, headers, content)
        connection = self.idle.take("") or self.open()
        is_kept = False
        try:
            was_sent = send_all(connection, message)
            arriving = receive(connection)
            is_kept = was_sent and arriving.is_kept
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no answer within {self.timeout.read:g} s") from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        finally:
            if is_kept:
                self.idle.keep("", connection)
            else:
                connection.close()
        return arriving.answer(str(url))

    def message(self, method: str, target: bytes, headers: Mapping[str, str], content: bytes | None) -> bytes:
        """A request as it is written. Raises `InvalidInput` (`E-PARAMETER`) for a header that would be another one."""
        length = b"" if content is None else b"content-length: %d\r\n" % len(content)
        first = b"%s %s HTTP/1.1\r\n" % (method.encode(), target)
        return b"".join((first, self.head, fields_of(headers), length, b"\r\n", content or b""))

    def open(self) -> socket.socket:
        """A new connection. Raises `httpx.ConnectError`, `httpx.ConnectTimeout`."""
        try:
            connection = socket.create_connection((self.host, self.port), self.timeout.connect)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.context is not None:
                    connection = self.context.wrap_socket(connection, server_hostname=self.host)
                connection.settimeout(self.timeout.read)
            except BaseException:
                connection.close()
                raise
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {self.timeout.connect:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection

    def close(self) -> None:
        self.idle.close()


def send_all(connection: socket.socket, message: bytes) -> bool:
    """Whether all of a request was taken: a service refuses a long one before its end, and its answer says why."""
    try:
        connection.sendall(message)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def fields_of(headers: Mapping[str, str]) -> bytes:
    """Header fields as they are written. Raises `InvalidInput` (`E-PARAMETER`) for what would be another field."""
    for name, value in headers.items():
        if not FIELD_VALUE.fullmatch(value):
            raise InvalidInput(
                f"The header {name} would contain a character that no header has.",
                do="Correct the token or the value that it is made of.", code="E-PARAMETER",
            )  # fmt: skip
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


class ArrivingAnswer:
    """A response while it arrives: what httptools' parser calls."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status, self.is_whole, self.is_kept = 0, False, False
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []

    def on_message_begin(self) -> None:
        if self.is_whole:
            self.is_kept = False  # more has come than was asked for
        else:
            self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_whole:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self.is_whole:
            self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self.is_whole:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status >= 200 and not self.is_whole:  # those below come before the response
            self.is_whole, self.is_kept = True, self.parser.should_keep_alive()

    def end(self) -> None:
        """Note that the connection has ended. Raises `httpx.RemoteProtocolError` in the middle of a response."""
        if self.status < 200 or not LENGTHS.isdisjoint(name for name, _ in self.headers):
            raise httpx.RemoteProtocolError("the service has ended the connection before its answer was whole")
        self.is_whole = True

    def answer(self, url: str) -> ServiceAnswer:
        """What has arrived. Raises `httpx.RemoteProtocolError` for a body that is not compressed as it says."""
        content = b"".join(self.pieces)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        if "content-encoding" in headers:
            try:
                content = httpx.Response(self.status, headers=headers, content=content).content
            except httpx.DecodingError as error:
                raise httpx.RemoteProtocolError(f"the answer cannot be decompressed: {error}") from error
        return ServiceAnswer(self.status, headers, content, url)


def receive(connection: socket.socket) -> ArrivingAnswer:
    """Read one response. Raises `OSError`, and `httpx.RemoteProtocolError` for what is not a whole one."""
    arriving, head_bytes = ArrivingAnswer(), 0
    while not arriving.is_whole:
        data = connection.recv(PIECE_BYTES)
        if not data:
            arriving.end()
            break
        try:
            arriving.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not arriving.is_whole:
                raise httpx.RemoteProtocolError(f"not a response of HTTP/1.1: {error}") from error
            arriving.is_kept = False
        head_bytes += 0 if arriving.pieces else len(data)
        if head_bytes > MAX_HEAD_BYTES and not arriving.is_whole and not arriving.pieces:
            raise httpx.RemoteProtocolError(f"the headers are longer than {MAX_HEAD_BYTES:,} bytes")
    return arriving
