"""The clients of a service against a server with the bytes of a test as answers: errors in words, retries, proxies."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import anyio
import httpx
import pytest

from tests.accepting_server import AcceptingServer
from trainyard import connect, connect_async
from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.surfaces.sdk import remote as remote_module
from trainyard.surfaces.sdk import wire

DELETED = json.dumps({"id": "chain-1", "name": "x", "revisions": 2}).encode()
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
Answer = Callable[[bytes], bytes]


def make_answer(content: bytes, **headers: str) -> bytes:
    fields = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    return "\r\n".join(["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items())]).encode() + (
        b"\r\n\r\n" + content
    )


OK = make_answer(DELETED)


class ScriptedServer(AcceptingServer):
    """Answers each request with the bytes that `answer` returns for it; empty bytes end the connection."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: OK
        self.requests: list[bytes] = []
        self.is_closing = False
        """Whether a connection ends after each answer."""
        super().__init__(socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := b"".join(takewhile(bytes.strip, stream)):
                length = LENGTH.search(head)
                self.requests.append(head + stream.read(int(length[1]) if length else 0))
                answer = self.answer(self.requests[-1])
                if answer:
                    connection.sendall(answer)
                if not answer or self.is_closing:
                    return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setattr(wire, "LONGEST_WAIT_S", 0.01)
    # On a busy machine two calls of one test are further apart than the usual four seconds.
    monkeypatch.setattr(remote_module, "LIMITS", httpx.Limits(keepalive_expiry=None))
    server = ScriptedServer()
    yield server
    server.stop()


def call(server: ScriptedServer, **options: Any) -> Any:
    """Return the result or the error of a call, which is the same by a blocking and by an asynchronous client."""

    async def call_async() -> Any:
        async with connect_async(server.url, "x", **options) as remote:
            return await remote.chains.delete(chain="x")

    results = list[Any]()
    with connect(server.url, "x", **options) as remote:
        for attempt in (lambda: remote.chains.delete(chain="x"), lambda: anyio.run(call_async)):
            try:
                results.append(attempt())
            except TrainyardError as error:
                results.append(error)
    blocking, asynchronous = results
    assert type(blocking) is type(asynchronous)
    assert getattr(blocking, "code", blocking) == getattr(asynchronous, "code", asynchronous)
    return blocking


def test_calls_share_a_connection_and_one_that_has_ended_is_replaced(server: ScriptedServer) -> None:
    with connect(server.url, "x") as remote:
        for _ in range(3):
            assert remote.chains.delete(chain="x").revisions == 2
        assert server.accepted == 1
        server.is_closing = True
        for _ in range(3):
            assert remote.chains.delete(chain="x").revisions == 2
    assert server.accepted == 3
    assert server.requests[0].startswith(b"DELETE /api/v1/chains/x HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "RemoteProtocolError: Server disconnected without sending a response"),
        (OK[:-5], "RemoteProtocolError: peer closed connection without sending complete message body"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "RemoteProtocolError: illegal status line"),
        (make_answer(b"abc", **{"content-encoding": "gzip"}), "DecodingError: "),
    ],
)
def test_what_is_not_a_whole_answer_is_asked_for_again_and_then_an_error_in_words(
    server: ScriptedServer, answer: bytes, reason: str
) -> None:
    server.answer, server.is_closing = lambda _: answer, True
    error = call(server)
    assert isinstance(error, Unavailable)
    assert error.code == "E-SERVER-UNREACHABLE"
    assert error.why.startswith(reason)
    assert len(server.requests) == 2 * wire.TRIES
    keys = {line for request in server.requests for line in request.lower().splitlines() if b"idempotency" in line}
    assert len(keys) == 2, "one for each call, the same in all its tries"
    server.answer = lambda _: OK
    assert call(server).revisions == 2


def test_an_answer_may_be_compressed(server: ScriptedServer) -> None:
    server.answer = lambda _: make_answer(gzip.compress(DELETED), **{"content-encoding": "gzip"})
    assert call(server).revisions == 2


def test_a_service_that_does_not_answer_in_time(server: ScriptedServer) -> None:
    released = threading.Event()
    server.answer = lambda _: OK if released.wait(30) else b""
    try:
        error = call(server, timeout_s=0.2)
    finally:
        released.set()
    assert isinstance(error, Unavailable)
    assert error.why.startswith("ReadTimeout")


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "a\x00", "a\u2026"])
def test_a_header_that_would_be_another_one_is_refused(server: ScriptedServer, value: str) -> None:
    with (
        connect(server.url, "x") as remote,
        pytest.raises(InvalidInput, match="E-PARAMETER: The header if-match would contain"),
    ):
        remote.chains.update(chain="x", spec={}, if_match=value)
    for open_client in (connect, connect_async):
        with pytest.raises(InvalidInput, match="E-PARAMETER: The header authorization would contain"):
            open_client(server.url, value)
    assert not server.requests


def test_a_proxy_of_the_environment_is_used_but_for_the_names_that_it_leaves_out(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses of this machine are left out by themselves."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", server.url.removeprefix("http://"))
    with connect("http://train.example", "x") as remote:
        assert remote.chains.delete(chain="x").revisions == 2
    assert server.requests.pop().startswith(b"DELETE http://train.example/api/v1/chains/x HTTP/1.1\r\n")
    direct = ScriptedServer()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    try:
        assert call(direct).revisions == 2
    finally:
        direct.stop()
    monkeypatch.setenv("NO_PROXY", ".example")
    with connect("http://train.example", "x") as remote, pytest.raises(Unavailable, match="ConnectError"):
        remote.chains.delete(chain="x")
