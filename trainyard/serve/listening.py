"""Listening of every Trainyard server: a socket, and limits on connections and time.

uvicorn waits for ever for a client that sends half a request, and keeps all of it. `BoundedProtocol` gives a request's
head ten seconds and 64 KiB and its body a minute, a client that reads nothing of its answer two minutes, and keeps at
most 512 connections: beyond them the oldest that has sent no whole head, or has its answer already, gives way. Trailers
are dropped: the checks of the headers ran before a field behind the body arrived (RFC 9110, 6.5.1).
uvicorn runs it on uvloop where that is installed.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trainyard.compute.services import EMBEDDED, Service, write_record
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.stores.processes import process_start

MAX_CONNECTIONS = 512
HEAD_S = 10.0
BODY_S = 60.0
REST_S = 5.0
"""How long nothing may arrive of the rest of a body that was answered before its end; the whole rest has `BODY_S`. Many
clients read an answer only after they have sent their body: one that is closed before reads a reset instead."""
IDLE_S = 75
"""How long a kept connection may be idle. Clients keep one for less (httpx 5 s, aiohttp 15 s), so that none sends its
request while the server closes the connection, which only a request that may be sent twice survives."""
UNREAD_S = 120.0
"""How long an answer waits for a client that reads none of it."""
MAX_HEAD_BYTES = 64 << 10
"""Of a request line and its headers, as long as they are not whole; h11 has the same limit, httptools none. As much may
arrive of a next request while one is answered."""
FRAMING_PER_BYTE = 8
"""As many bytes of chunk sizes, extensions and trailers may come with each byte of a body, and `MAX_HEAD_BYTES`."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
Phase = Literal["head", "body", "rest", "answer"]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `LimitExceeded` (`E-PORT`) when the port is taken.

    Its protocol is named because asyncio sets TCP_NODELAY only where it reads TCP there; without, each answer on a kept
    connection waits 40 ms for the client's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LimitExceeded(
            f"Port {port} of {host} cannot be used: {error.strerror}.", do="Choose another port, or 0.", code="E-PORT"
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def list_allowed_hosts(host: str) -> list[str]:
    """Names in the Host header that a server of this address answers to: a page in a browser cannot choose that header,
    though it may point its own name at 127.0.0.1.
    """
    return ["127.0.0.1", "localhost", "[::1]", "::1"] if is_loopback(host) else ["*"]


def bind_guarded(host: str, port: int, token: str | None, danger: str) -> socket.socket:
    """`bind`, off loopback only with a token. Raises `InvalidInput` (`E-AUTH`) and what `bind` raises."""
    if not is_loopback(host) and token is None:
        raise InvalidInput(
            f"The server does not listen on {host} without a token.",
            why=danger,
            do="Set TRAINYARD_TOKEN, or use --host 127.0.0.1.",
            code="E-AUTH",
        )
    return bind(host, port)


def has_token(request: Request, token: str | None) -> bool:
    """Whether a request has the bearer token, or none is requested."""
    header = request.headers.get("authorization", "")
    return token is None or hmac.compare_digest(header.encode(), f"Bearer {token}".encode())


def build_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_config(app: Any, *, graceful_s: int) -> uvicorn.Config:
    """Return uvicorn's settings for a Trainyard server: quiet, bounded, without websockets."""
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "ws": "none", "proxy_headers": False}
    quiet["server_header"] = False
    quiet["timeout_keep_alive"] = IDLE_S
    return uvicorn.Config(app, http=BoundedProtocol, timeout_graceful_shutdown=graceful_s, **quiet)


def print_record(record: Service) -> None:
    """Print the record of a server as one JSON line."""
    print(json.dumps(asdict(record)), flush=True)


class AnnouncedServer(uvicorn.Server):
    """uvicorn for a model, which says where it answers once it accepts connections.

    It announces its record, by default as one JSON line, and writes it into `folder` as `embedded.json`, where one is
    given.
    """

    def __init__(
        self, app: object, listener: socket.socket, folder: Path | None, model: str, sha256: str = "", *,
        announce: Callable[[Service], None] = print_record,
    ) -> None:  # fmt: skip
        super().__init__(server_config(app, graceful_s=3))
        self.announce = announce
        self.listener, self.folder, self.model, self.sha256 = listener, folder, model, sha256

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        url, port = build_url(self.listener), self.listener.getsockname()[1]
        record = Service(os.getpid(), process_start(), url, "", "", port, self.model, self.sha256, time.time())
        self.announce(record)
        if self.folder is not None:
            write_record(self.folder / f"{EMBEDDED}.json", record)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with deadlines for head, body and a client that does not read, and with caps."""

    phase: Phase = "head"
    since = 0.0
    head_bytes = 0
    in_body = False
    """Whether a whole head has come and its message has not ended."""
    framing_bytes = 0
    """What has arrived since the head, less the body's own bytes."""
    body_bytes = rest_bytes = 0
    seen: object = None
    """The request of the phase."""
    deadline: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.enter("head")
        if len(self.connections) > MAX_CONNECTIONS:
            self.make_room()

    def data_received(self, data: bytes) -> None:
        was_in_body = self.in_body
        super().data_received(data)
        if was_in_body and self.in_body:
            self.framing_bytes += len(data)
            if self.framing_bytes - self.body_bytes > MAX_HEAD_BYTES + FRAMING_PER_BYTE * self.body_bytes:
                self.transport.abort()
        if self.transport.get_protocol() is not self:
            return  # it is a websocket now
        phase = self.phase_now()
        has_begun = phase != self.phase or self.cycle is not self.seen
        if has_begun:
            self.enter(phase)
        counts = phase == "head" and not was_in_body  # the last bytes of an answered body are of no head
        if (counts or (phase == "answer" and not has_begun)) and not self.transport.is_closing():
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self.refuse_head(phase)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.in_body, self.framing_bytes, self.body_bytes = True, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.phase_now() == "rest":  # no data may ever come, upon which the phase would change
            self.enter("rest")

    def refuse_head(self, phase: Phase) -> None:
        """Close a connection whose head is too long; in the middle of an answer there is no other one."""
        if phase == "answer":
            self.transport.abort()
        else:
            self.transport.write(TOO_LONG)
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to the protocol of websockets, which has its own deadlines."""
        self.cancel_timers()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cancel_timers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.unread or self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def cancel_timers(self) -> None:
        for timer in (self.deadline, self.unread):
            if timer is not None:
                timer.cancel()
        self.deadline = self.unread = None

    def phase_now(self) -> Phase:
        """Return the phase of the connection: it waits for a request's head, its body, the rest of one that is
        answered, our answer.
        """
        if self.cycle is None or self.cycle.response_complete:
            return "rest" if self.in_body and self.cycle is not None else "body" if self.in_body else "head"
        return "body" if self.cycle.more_body else "answer"

    def enter(self, phase: Phase) -> None:
        """Start a phase, and its deadline."""
        self.phase, self.since, self.head_bytes, self.seen = phase, self.loop.time(), 0, self.cycle
        self.rest_bytes = self.body_bytes
        if self.deadline is not None:
            self.deadline.cancel()
        allowed_s = {"head": HEAD_S, "body": BODY_S, "rest": REST_S}.get(phase)
        self.deadline = self.loop.call_later(allowed_s, self.expire) if allowed_s is not None else None

    def expire(self) -> None:
        """Close the connection of a client that is too slow; one that has its answer is idle, and uvicorn's concern."""
        if self.phase_now() == self.phase and not self.transport.is_closing():
            if self.phase == "rest" and self.body_bytes > self.rest_bytes and self.loop.time() < self.since + BODY_S:
                self.rest_bytes = self.body_bytes
                self.deadline = self.loop.call_later(REST_S, self.expire)
                return
            if self.cycle is None or not self.cycle.response_started:
                self.transport.write(LATE)
            self.transport.close()

    def make_room(self) -> None:
        """Close the oldest connection that has sent no whole head or has its answer; this one if there is none.

        Those that are closing already are in the list until the loop's next turn.
        """
        here = [connection for connection in self.connections if not connection.transport.is_closing()]
        if len(here) > MAX_CONNECTIONS:
            protocols = [
                connection for connection in here if isinstance(connection, BoundedProtocol)
            ]  # others are websockets
            oldest = min(
                (protocol for protocol in protocols if protocol.phase_now() in ("head", "rest")),
                key=lambda protocol: protocol.since,
                default=self,
            )
            oldest.transport.write(FULL)
            oldest.transport.close()
