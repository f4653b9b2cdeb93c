"""Clients of the API that misuse their connections: many streams, none read, half requests, two requests in one.

The service is a process of its own, and the clients are sockets, so that each byte is as an attacker sends it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest

from tests.api_process import keep_in_step, serving
from trainyard.app.access.limits import MOST_OF_CALLER
from trainyard.compute.child import LOG_FILE
from trainyard.serve.listening import BODY_S, HEAD_S, MAX_CONNECTIONS, MAX_HEAD_BYTES
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobIndex
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

RUN = "0190d3c2-1f2e-4a3b-8c4d-5e6f70819203"
LOGS = "/api/v1/jobs/job-5e6f70819203/logs?source=trainer"
LOG_BYTES = 60 << 20
CLIENTS = 8
"""What each has not read would be 480 MiB together; to open such a stream takes the service half a second."""
MiB = 1 << 20


@dataclass(frozen=True)
class RunningService:
    """The service of a home with one running job, and two callers."""

    port: int
    log: Path
    token: str
    other: str

    @property
    def process(self) -> psutil.Process:
        here = (child for child in psutil.Process().children() if f"{self.port}" in child.cmdline())
        return next(here)

    def connect(self, **options: int) -> socket.socket:
        connection = socket.socket()
        for name, value in options.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def head(self, path: str, *more: str, method: str = "GET", token: str = "") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *more]
        lines += [f"Authorization: Bearer {token or self.token}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def follow(self, token: str = "", **options: int) -> socket.socket:
        """A connection that has asked for the log as a stream."""
        connection = self.connect(**options)
        connection.sendall(self.head(LOGS, "Accept: text/event-stream", token=token))
        return connection

    def get(self, path: str, token: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {token or self.other}"}
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=30)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home, work = tmp_path_factory.mktemp("api") / "home", tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_API_REQUESTS_PER_S", "100000")
        tokens = TokenFile(home)
        token, other = (tokens.create(name, "read", "", 1) for name in ("many", "other"))
        index = JobIndex(load_settings(home=home).home / "live" / "jobs.sqlite3")
        index.put([make_row(work)], time.time())
        with keep_in_step(index), serving() as port:
            yield RunningService(port, work / LOG_FILE, token, other)


def make_row(work: Path) -> dict[str, Any]:
    training = {"node": "trainer", "folder": str(work), "since": 0.0, "step": 1}
    return {
        "run_id": RUN, "id": "job-5e6f70819203", "name": "guide", "tenant": "default", "state": JobState.RUNNING,
        "detail": "", "message": "", "created": 1.0, "started": 1.0, "seconds": 1.0, "attempts": 1, "pid": None,
        "url": "", "parameters": {}, "tags": ["job"], "stage": "sft", "method": "lora", "backend": "native",
        "base_model": "", "trainings": [training],
    }  # fmt: skip


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def read_all(connection: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    data = bytearray()
    with contextlib.suppress(ConnectionError, OSError):
        while part := connection.recv(1 << 16):
            data += part
    return bytes(data)


def test_one_caller_cannot_take_all_connections_by_streams(service: RunningService) -> None:
    assert 200 < MOST_OF_CALLER < MAX_CONNECTIONS
    with ExitStack() as streams:
        for _ in range(MOST_OF_CALLER):
            stream = streams.enter_context(service.follow())
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
        refused = service.get(LOGS, service.token)
        assert (refused.status_code, refused.json()["code"]) == (429, "E-RATE")
        assert f"{MOST_OF_CALLER} requests and streams of many are open" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) >= 1
        assert service.get(LOGS).status_code == 200, "another caller is served"
        with service.follow(service.other) as stream:
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: service.get(LOGS, service.token).status_code == 200)


def test_the_service_reads_no_log_for_a_client_that_has_gone(service: RunningService) -> None:
    def read_chars() -> int:
        return int(service.process.io_counters().read_chars)

    def grow(count: int) -> None:
        for _ in range(10):
            with service.log.open("a") as log:
                log.write("a step of the training\n" * (count // 10))
            time.sleep(0.2)

    count = 100_000
    with service.follow() as stream:
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        reader = Thread(target=read_all, args=(stream,), daemon=True)
        reader.start()
        before = read_chars()
        grow(count)
        deadline = time.monotonic() + 60
        while read_chars() - before <= 22 * count:
            assert time.monotonic() < deadline, "the service reads the log for its client"
            time.sleep(0.1)
        stream.shutdown(socket.SHUT_RDWR)
        reader.join(20)
    time.sleep(1)
    before = read_chars()
    grow(count)
    assert read_chars() - before < 22 * count / 4


def test_a_client_that_does_not_read_costs_the_service_no_memory(service: RunningService) -> None:
    with service.log.open("a") as log:
        for _ in range(60):
            log.write(("x" * 1023 + "\n") * 1024)
    assert service.log.stat().st_size >= LOG_BYTES
    assert service.get(LOGS).status_code == 200
    before = service.process.memory_info().rss
    with ExitStack() as clients:
        for _ in range(CLIENTS):
            assert clients.enter_context(service.follow(SO_RCVBUF=4096)).recv(12) == b"HTTP/1.1 200"
        time.sleep(3)
        grown = service.process.memory_info().rss - before
        assert grown < 100 * MiB, f"{grown / MiB:.0f} MiB for {CLIENTS} clients that are 60 MiB behind each"
        start_s = time.monotonic()
        assert service.get(LOGS).status_code == 200
        assert time.monotonic() - start_s < 60
    spent = cpu_seconds(service.process)
    wait_until(lambda: len(service.process.net_connections()) < 10)
    assert service.get("/health").status_code == 200
    assert cpu_seconds(service.process) - spent < 5, "it reads on for clients that have gone"


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.slow  # `tests/unit/serve/test_listening.py` has it with a shorter deadline
def test_half_a_head_is_ended(service: RunningService) -> None:
    with service.connect() as connection:
        connection.settimeout(HEAD_S + 30)
        connection.sendall(service.head(LOGS)[:-2])
        assert read_all(connection).startswith(b"HTTP/1.1 408")


@pytest.mark.faults
def test_half_a_body_is_ended(service: RunningService) -> None:
    with service.connect() as connection:
        connection.settimeout(BODY_S + 60)
        more = ("Content-Type: application/json", "Content-Length: 4000")
        connection.sendall(service.head("/api/v1/check", *more, method="POST") + b'{"files"')
        assert b"HTTP/1.1 408" in read_all(connection)


@pytest.mark.parametrize("form", ["line", "header", "headers", "dripped"])
def test_a_head_that_is_too_long_is_refused(form: str, service: RunningService) -> None:
    begin = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n".encode()
    sent = {
        "line": b"GET /" + b"a" * (2 * MAX_HEAD_BYTES),
        "header": begin + b"x: " + b"a" * (2 * MAX_HEAD_BYTES),
        "headers": begin + b"x: a\r\n" * (MAX_HEAD_BYTES // 3),
        "dripped": begin + b"x: " + b"a" * MAX_HEAD_BYTES,
    }[form]
    with service.connect() as connection:
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(sent), 8192 if form == "dripped" else len(sent)):
                connection.sendall(sent[start : start + (8192 if form == "dripped" else len(sent))])
        answer = read_all(connection)
    allowed = (b"HTTP/1.1 431",) if form == "dripped" else (b"HTTP/1.1 431", b"")  # a reset may outrun the answer
    assert answer[:12] in allowed
    assert service.get("/health").status_code == 200


def send_without_end(connection: socket.socket) -> None:
    """Send much more than anybody may."""
    for _ in range(100):
        connection.sendall(b"a" * 65_536)
        time.sleep(0.01)


def test_a_long_head_behind_a_stream_ends_the_connection(service: RunningService) -> None:
    """A next request may be sent before the answer is whole, but not without end."""
    with service.follow() as stream:
        assert stream.recv(12) == b"HTTP/1.1 200"
        stream.sendall(b"GET / HTTP/1.1\r\nx: ")
        with pytest.raises(ConnectionError):
            send_without_end(stream)
    assert service.get("/health").status_code == 200


SECOND = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LENGTH = len(SECOND)
GET = "GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = "POST /api/v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = f"{POST}Transfer-Encoding: chunked\r\n"
SHAPES = {
    "both lengths": f"{POST}Content-Length: {LENGTH + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, other order": f"{CHUNKED}Content-Length: {LENGTH + 5}\r\n\r\n0\r\n\r\n",
    "two lengths": f"{POST}Content-Length: 0\r\nContent-Length: {LENGTH}\r\n\r\n",
    "the same length twice": f"{POST}Content-Length: {LENGTH}\r\nContent-Length: {LENGTH}\r\n\r\n",
    "a list of lengths": f"{POST}Content-Length: 0, {LENGTH}\r\n\r\n",
    "a signed length": f"{POST}Content-Length: +0\r\n\r\n",
    "a hexadecimal length": f"{POST}Content-Length: 0x0\r\n\r\n",
    "a folded length": f"{POST}X: a\r\n Content-Length: {LENGTH}\r\nContent-Length: 0, 0\r\n\r\n",
    "a space before the colon": f"{POST}Content-Length : {LENGTH}\r\n\r\n",
    "an unknown coding": f"{POST}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding with a tab": f"{POST}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two codings": f"{CHUNKED}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "bare line feeds": "GET /api/v1/jobs HTTP/1.1\nHost: 127.0.0.1\n\n",
    "a bare line feed in a header": f"{GET}X: a\n\r\n",
    "a bare carriage return": f"{GET}X: a\rY: b\r\n\r\n",
    "a chunk's odd end": f"{CHUNKED}\r\n2\r\n{{}}X0\r\n\r\n",
    "a chunk size beyond 64 bits": f"{CHUNKED}\r\n10000000000000000\r\n",
    "a null in a name": f"{GET}X\0Y: a\r\n\r\n",
}
"""What servers read differently; behind each comes a second request."""


@pytest.mark.parametrize("shape", SHAPES)
def test_two_requests_in_one_are_one_or_none(shape: str, service: RunningService) -> None:
    """What two servers would read differently is refused, and nothing behind it is answered."""
    with service.connect() as connection:
        connection.sendall((SHAPES[shape] + SECOND).encode("latin-1"))
        connection.settimeout(HEAD_S + 20)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    assert b'"status":"ok"' not in answer, answer


def test_an_upgrade_is_one_request(service: RunningService) -> None:
    """A request that asks for another protocol is answered as HTTP, and what follows it is not read as a request."""
    for protocol in ("websocket", "h2c"):
        more = ("Connection: Upgrade", f"Upgrade: {protocol}")
        with service.connect() as connection:
            connection.settimeout(HEAD_S + 20)
            connection.sendall(service.head("/api/v1/jobs", *more) + SECOND.encode())
            answer = connection.recv(1 << 16)
            assert service.get("/health").status_code == 200, "what was sent later is answered"
            connection.settimeout(0.5)
            answer += read_all(connection)
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert b'"status":"ok"' not in answer
