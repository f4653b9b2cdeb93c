"""Calls by kept sockets, against a server that answers with the bytes of the test."""

from __future__ import annotations

import gzip
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.unit.api.accepting_server import AcceptingServer
from trainyard.api.sdk import direct
from trainyard.api.sdk.direct import DirectConnections
from trainyard.errors import InvalidInput

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
Answer = Callable[[bytes], bytes]


class ScriptedServer(AcceptingServer):
    """Answers each request with what `answer` makes of it; empty bytes end the connection."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: OK
        self.requests: list[bytes] = []
        self.is_closing = False  # whether a connection ends after each answer
        super().__init__(socket.create_server(("127.0.0.1", 0)))

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 20):
                self.requests.append(data)
                answer = self.answer(data)
                if not answer:
                    return
                connection.sendall(answer)
                if self.is_closing:
                    return


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
def service(server: ScriptedServer) -> Iterator[DirectConnections]:
    service = connections_of(server.socket.getsockname()[1])
    yield service
    service.close()


def connections_of(port: int, read_s: float = 10.0) -> DirectConnections:
    url = httpx.URL(f"http://127.0.0.1:{port}")
    return DirectConnections(url, {"authorization": "Bearer x"}, httpx.Timeout(read_s, connect=5.0))


def send(service: DirectConnections, content: bytes | None = None, **headers: str) -> direct.ServiceAnswer:
    url = httpx.URL(f"http://127.0.0.1:{service.port}/api/v1/jobs?state=failed")
    return service.send("GET" if content is None else "POST", url, headers, content)


def test_a_request_is_one_write_and_its_connection_is_kept(server: ScriptedServer, service: DirectConnections) -> None:
    for _ in range(3):
        found = send(service, b'{"a": 1}', accept="application/json")
        assert (found.status_code, found.content, found.json(), found.media_type) == (
            200,
            b"{}",
            {},
            "application/json",
        )
        assert found.url == f"http://127.0.0.1:{service.port}/api/v1/jobs?state=failed"
    head = f"POST /api/v1/jobs?state=failed HTTP/1.1\r\nhost: 127.0.0.1:{service.port}\r\nauthorization: Bearer x\r\n"
    assert server.requests == [f'{head}accept: application/json\r\ncontent-length: 8\r\n\r\n{{"a": 1}}'.encode()] * 3
    assert server.accepted == 1
    send(service)
    assert server.requests[-1].startswith(b"GET /api")
    assert b"content-length" not in server.requests[-1]


@pytest.mark.parametrize(
    ("answer", "content", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK, b"{}", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", b"abc", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", 2),
        (OK + OK.replace(b"{}", b"[]"), b"{}", 2),
        (OK + b"\x00", b"{}", 2),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
         % (len(gzip.compress(b"abc", mtime=0)), gzip.compress(b"abc", mtime=0)), b"abc", 1),
    ],
)  # fmt: skip
def test_forms_of_an_answer(
    server: ScriptedServer, service: DirectConnections, answer: bytes, content: bytes, connections: int
) -> None:
    server.answer = lambda _: answer
    for _ in range(2):
        found = send(service)
        assert (found.content, "link" in found.headers) == (content, False)
    assert server.accepted == connections


def test_a_long_answer_comes_in_pieces(server: ScriptedServer, service: DirectConnections) -> None:
    body = b"x" * (3 << 20)
    server.answer = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    assert send(service).content == body


def test_a_body_without_a_length_ends_with_its_connection(server: ScriptedServer, service: DirectConnections) -> None:
    server.answer, server.is_closing = lambda _: b"HTTP/1.1 200 OK\r\n\r\nabc", True
    assert send(service).content == b"abc"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "ended the connection before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\nContent-", "ended the connection before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "ended the connection before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc", "before its answer was whole"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "before its answer was whole"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a response of HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "not a response of HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: %s\r\n" % (b"a" * 70_000) * 3, "longer than 131,072 bytes"),
    ],
)
def test_what_is_not_a_whole_answer_is_an_error_of_the_transport(
    server: ScriptedServer, service: DirectConnections, answer: bytes, why: str
) -> None:
    server.answer, server.is_closing = lambda _: answer, True
    with pytest.raises(httpx.RemoteProtocolError, match=why):
        send(service)
    assert not service.idle.idle
    server.answer = lambda _: OK
    assert send(service).content == b"{}"


def test_an_answer_before_the_end_of_a_request(server: ScriptedServer, service: DirectConnections) -> None:
    answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nlong"
    server.answer, server.is_closing = lambda _: answer, True  # the rest of the request is not read
    found = send(service, b"x" * (64 << 20))
    assert (found.status_code, found.text) == (413, "long")
    assert not service.idle.idle


def test_what_cannot_be_decompressed(server: ScriptedServer, service: DirectConnections) -> None:
    server.answer = lambda _: b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    with pytest.raises(httpx.RemoteProtocolError, match="cannot be decompressed"):
        send(service)


def test_a_connection_that_the_service_has_closed_is_replaced(
    server: ScriptedServer, service: DirectConnections
) -> None:
    server.is_closing = True
    for number in range(1, 4):
        assert send(service).status_code == 200
        server.threads[number].join()
    assert server.accepted == 3


def test_a_process_with_many_open_files(server: ScriptedServer, service: DirectConnections) -> None:
    """`select` takes no descriptor from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        for _ in range(2):
            assert send(service).status_code == 200
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.accepted == 1


def test_nobody_answers_in_time(server: ScriptedServer) -> None:
    released = threading.Event()
    server.answer = lambda _: OK if released.wait(30) else b""
    service = connections_of(server.socket.getsockname()[1], read_s=0.2)
    with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.2 s"):
        send(service)
    released.set()
    assert not service.idle.idle


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(httpx.ConnectError, match="refused"):
        send(connections_of(port))


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "a\x00", "a\u2026"])
def test_a_header_that_would_be_another_one_is_refused(
    server: ScriptedServer, service: DirectConnections, value: str
) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER: The header if-match would contain"):
        send(service, **{"if-match": value})
    with pytest.raises(InvalidInput, match="E-PARAMETER: The header authorization would contain"):
        DirectConnections(httpx.URL("http://127.0.0.1"), {"authorization": value}, httpx.Timeout(5))
    assert not server.requests


def test_threads_get_their_own_answers(server: ScriptedServer, service: DirectConnections) -> None:
    def echo(request: bytes) -> bytes:
        body = request.partition(b"\r\n\r\n")[2]
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    server.answer = echo
    found: dict[int, set[bytes]] = {}

    def call(number: int) -> None:
        found[number] = {send(service, b"of %d" % number).content for _ in range(50)}

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {b"of %d" % number} for number in range(8)}
    assert len(server.requests) == 400
    assert server.accepted <= 8
