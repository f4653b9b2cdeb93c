"""Strangers at the service: large bodies, bodies that stop, JSON bombs, trailers, names that are used again.

The service is a process of its own, and most clients are sockets, so that each byte is as an attacker sends it.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import psutil
import pytest

from tests.api_process import serving
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

MiB = 1 << 20
CHECK, LOGIN = "/api/v1/check", "/api/v1/login"
TENSORS = "application/x-safetensors"
LARGEST_MiB = 256
SMALL = {"files": [{"name": "c", "nodes": []}]}


@dataclass(frozen=True)
class RunningService:
    """A running service with three callers."""

    port: int
    home: Path
    work: Path
    run: str
    read: str

    @property
    def process(self) -> psutil.Process:
        here = (child for child in psutil.Process().children() if f"{self.port}" in child.cmdline())
        return next(here)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.settimeout(30)
        return connection

    def head(self, path: str, *more: str, token: str = "") -> bytes:
        lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Type: application/json", *more]
        lines += [f"Authorization: Bearer {token}"] if token else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def ask(self, method: str, path: str, token: str = "", **options: Any) -> httpx.Response:
        headers = {**({"authorization": f"Bearer {token}"} if token else {}), **options.pop("headers", {})}
        return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=60, **options)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home, work = tmp_path_factory.mktemp("api") / "home", tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_WORKING_FOLDER", str(work))
        (work / ".env").write_text("KEY=secret\n")
        (work / "chats.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
        tenant_folder = home / "tenants" / "acme"
        tenant_folder.mkdir(parents=True)
        (tenant_folder / "own.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
        tokens = TokenFile(home)
        run, read = tokens.create("many", "run", "", 1), tokens.create("acme", "read", "acme", 1)
        with serving() as port:
            yield RunningService(port, home, work, run, read)


def read_answer(connection: socket.socket) -> bytes:
    answer = bytearray()
    while b"\r\n\r\n" not in answer and (part := connection.recv(1 << 16)):
        answer += part
    return bytes(answer)


def read_status(connection: socket.socket) -> int:
    answer = read_answer(connection)
    return int(answer.split()[1]) if answer else 0


def test_a_trailer_is_not_a_header(service: RunningService) -> None:
    with service.connect() as connection:
        connection.sendall(service.head(CHECK, "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n")
        connection.sendall(f"Authorization: Bearer {service.run}\r\n\r\n".encode())
        assert read_status(connection) == 401


def send_for_a_while(connection: socket.socket, head: bytes, more: bytes) -> None:
    connection.sendall(head + b"2\r\n{}\r\n")
    for _ in range(50):
        connection.sendall(more)
        time.sleep(0.02)


def test_endless_trailers_and_extensions_end_the_connection(service: RunningService) -> None:
    for more in (b"0\r\n" + b"x-filler: " + b"a" * 500_000, b"1;ext=" + b"a" * 500_000):
        with service.connect() as connection, pytest.raises(OSError, match=r"reset|Broken pipe|closed"):
            send_for_a_while(connection, service.head(CHECK, "Transfer-Encoding: chunked", token=service.read), more)


def test_half_bodies_lock_nobody_out_of_the_login(service: RunningService) -> None:
    half = [service.connect() for _ in range(600)]
    try:
        for connection in half:
            connection.sendall(service.head(LOGIN, "Content-Length: 100") + b"{")
        began = time.monotonic()
        assert service.ask("POST", LOGIN, json={"token": service.run}).status_code == 200
        assert service.ask("GET", "/dashboard").status_code in (200, 307, 404)
        assert service.ask("GET", "/health").status_code == 200
        assert time.monotonic() - began < 60
    finally:
        for connection in half:
            connection.close()


def test_a_half_body_of_a_stranger_has_five_seconds(service: RunningService) -> None:
    began = time.monotonic()
    with service.connect() as connection:
        connection.sendall(service.head(LOGIN, "Content-Length: 100") + b"{")
        assert read_status(connection) == 408
    assert 4 < time.monotonic() - began < 60


def test_a_long_login_is_refused(service: RunningService) -> None:
    assert service.ask("POST", LOGIN, json={"token": "x" * 5_000}).status_code == 413


def test_the_body_of_a_session_that_is_not_there_is_not_read(service: RunningService) -> None:
    with service.connect() as connection:
        head = service.head("/api/v1/sessions/X/forward", f"Content-Length: {LARGEST_MiB * MiB}", token=service.run)
        connection.sendall(head.replace(b"application/json", TENSORS.encode()))
        assert read_status(connection) == 404  # not a byte of it was sent


def test_tensors_are_for_sessions_alone(service: RunningService) -> None:
    answer = service.ask("POST", CHECK, service.run, content=b"x" * (9 * MiB), headers={"content-type": TENSORS})
    assert answer.status_code == 413


@pytest.mark.parametrize("item", [b"{}", b"[]", b"0", b'""', b'"\\"[["'])
def test_a_bomb_is_refused_before_it_is_decoded(service: RunningService, item: bytes) -> None:
    body = b'{"files": [' + b",".join([item] * (8 * MiB // (len(item) + 1) - 10)) + b"]}"
    before, began = service.process.memory_info().rss, time.monotonic()
    answer = service.ask("POST", CHECK, service.run, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "E-BODY-LENGTH")
    assert time.monotonic() - began < 60
    assert service.process.memory_info().rss - before < 200 * MiB


def test_long_texts_are_not_taken_for_structure(service: RunningService) -> None:
    body = {"files": [{"name": "text", "nodes": [], "notes": "[{,:" * 500_000}]}
    answer = service.ask("POST", CHECK, service.run, json=body)
    assert answer.status_code == 200
    assert not answer.json()["files"][0]["ok"]


def test_names_that_are_used_again_are_other_callers(service: RunningService) -> None:
    tokens = TokenFile(service.home)
    first = tokens.create("again", "read", "acme", 1)
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as browser:
        assert browser.post(LOGIN, json={"token": first}).status_code == 200
        assert browser.get(LOGIN).json()["tenant"] == "acme"
        tokens.revoke("again")
        assert browser.get(LOGIN).status_code == 401
        tokens.create("again", "admin", "", 1)
        assert browser.get(LOGIN).status_code == 401


def test_a_key_of_a_token_that_was_revoked_is_not_that_of_a_new_one(service: RunningService) -> None:
    """The same name, another tenant: its chain is stored, and it gets nothing of the first answer."""
    tokens = TokenFile(service.home)
    body = {"name": "keyed", "nodes": [{"type": "data_source", "config": {"path": "own.jsonl"}}, {"type": "trainer"}]}
    headers, chains = {"idempotency-key": "the-same-key"}, list[dict[str, Any]]()
    for tenant in ("acme", "beta"):
        token = tokens.create("keyed", "run", tenant, 1)
        answers = [service.ask("POST", "/api/v1/chains", token, json=body, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert answers[0].json()["id"] == answers[1].json()["id"], "the same request is carried out once"
        chains.append(answers[0].json())
        assert [chain["id"] for chain in service.ask("GET", "/api/v1/chains", token).json()["chains"]] == [
            chains[-1]["id"]
        ]
        if tenant == "beta":
            assert service.ask("GET", f"/api/v1/chains/{chains[0]['id']}", token).status_code == 404
        tokens.revoke("keyed")
    assert chains[0]["id"] != chains[1]["id"]
    assert {chain["tenant"] for chain in chains} == {"acme", "beta"}


def find_confined_children(service: RunningService) -> list[psutil.Process]:
    """The children that carry out requests: forks of the process from which they are forked."""
    family = {child.pid: child for child in service.process.children(recursive=True)}
    forkers = {pid for pid, child in family.items() if "forkserver" in " ".join(child.cmdline())}
    return [child for child in family.values() if child.ppid() in forkers]


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not (is_true := true()) and time.monotonic() < ends:
        time.sleep(0.05)
    return is_true


def test_a_caller_has_two_children_and_four_requests_that_wait(service: RunningService) -> None:
    """Two run, four wait, the next one is told when to ask again; all end when their caller hangs up."""
    assert service.ask("POST", CHECK, service.run, json=SMALL).status_code == 200
    body, clients = nodes(9_900 * 51), [service.connect() for _ in range(8)]
    try:
        for client in clients:
            client.sendall(service.head(CHECK, f"Content-Length: {len(body)}", token=service.run) + body)
        answered, most = list[socket.socket](), 0
        for _ in range(200):
            most = max(most, len(find_confined_children(service)))
            if answered := select.select(clients, (), (), 0.05)[0]:
                break
        assert most == 2
        answers = [read_answer(connection).lower() for connection in answered]
        assert [int(answer.split()[1]) for answer in answers] == [429] * len(answers)
        assert all(b"\r\nretry-after: " in answer for answer in answers)
        assert service.ask("POST", CHECK, service.read, json=SMALL).status_code == 200, (
            "another caller has its own places"
        )
        assert len(find_confined_children(service)) == 2
    finally:
        for client in clients:
            client.close()
    assert wait_until(lambda: not find_confined_children(service), 5)
    assert service.ask("POST", CHECK, service.run, json=SMALL).status_code == 200


def test_ten_small_requests_at_once_are_all_answered(service: RunningService) -> None:
    """An editor sends some with each change; two run at a time, and the others wait."""
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: service.ask("POST", CHECK, service.run, json=SMALL), range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10


OUTSIDE = (
    "chats.jsonl", ".env", "../.env", "nothing.jsonl", "/etc/passwd", "/etc", "/etc/nothing", "/proc/self/exe",
    "../beta", "../../tenants/beta/x.jsonl", ".ssh/id_rsa",
)  # fmt: skip


def test_a_tenant_learns_nothing_of_what_is_not_its_own(service: RunningService) -> None:
    (service.home / "tenants" / "acme" / "link.jsonl").symlink_to(service.work / "chats.jsonl")
    answers = [service.ask("GET", "/api/v1/data/preview", service.read, params={"path": path}) for path in OUTSIDE]
    answers.append(service.ask("GET", "/api/v1/data/preview", service.read, params={"path": "link.jsonl"}))
    texts = {json.dumps({**answer.json(), "trace": ""}) for answer in answers}
    assert len(texts) == 1, texts
    (text,) = texts
    assert str(service.home) not in text
    assert str(service.work) not in text
    assert "E-DATA-NOT-FOUND" in text


def test_check_says_the_same_of_every_place_that_is_not_a_tenants(service: RunningService) -> None:
    rows = []
    for path in OUTSIDE:
        chain = {"name": "c", "nodes": [{"type": "data_source", "config": {"path": path}}, {"type": "trainer"}]}
        answer = service.ask("POST", CHECK, service.read, json={"files": [chain]})
        body = {**answer.json(), "trace": ""}
        rows.append((answer.status_code, json.dumps(body)))
        assert str(service.home) not in answer.text
        assert str(service.work) not in answer.text
    assert {"chats.jsonl", "secret"}.isdisjoint(" ".join(text for _, text in rows).split())


@pytest.mark.slow
def test_a_tenant_reads_its_own_folder(service: RunningService) -> None:
    answer = service.ask("GET", "/api/v1/data/preview", service.read, params={"path": "own.jsonl"})
    assert answer.status_code == 200
    assert str(service.home) not in answer.text


# The bar


def probe(service: RunningService, stop: Event, seconds: list[float]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        while not stop.is_set():
            began = time.perf_counter()
            assert client.get("/health").status_code == 200
            seconds.append(time.perf_counter() - began)
            time.sleep(0.02)


def send_and_leave(service: RunningService, path: str, kind: str, body: bytes, repeat: int) -> None:
    """Send a body as fast as the service takes it, all but its end where `repeat` is larger than one, and hang up."""
    with service.connect() as connection:
        head = service.head(path, f"Content-Length: {len(body) * repeat}", token=service.run)
        try:
            connection.sendall(head.replace(b"application/json", kind.encode()))
            for _ in range(repeat):
                connection.sendall(body)
        except OSError:
            return  # it was refused before its end


def nodes(size: int) -> bytes:
    node = b'{"type":"data_source","config":{"path":"x.jsonl"}}'
    return b'{"files":[{"name":"c","nodes":[' + b",".join([node] * (size // (len(node) + 1))) + b"]}]}"


def work_left(service: RunningService) -> float:
    """CPU seconds that the service and its children used within a second."""
    family = [service.process, *service.process.children(recursive=True)]
    before = sum(sum(process.cpu_times()[:2]) for process in family)
    time.sleep(1)
    return sum(sum(process.cpu_times()[:2]) for process in family if process.is_running()) - before


@pytest.mark.slow
def test_large_bodies_of_clients_that_hang_up(service: RunningService) -> None:
    """Six clients for each kind of body, next to a health probe: it stays below a second, and nothing is left."""
    text = json.dumps({"files": [{"name": "c", "nodes": [], "notes": "a" * (8 * MiB - 200)}]}).encode()
    bomb = b'{"files": [' + b",".join([b"{}"] * (8 * MiB // 3 - 10)) + b"]}"
    kinds = (
        ("/api/v1/sessions/X/forward", TENSORS, bytes(MiB), LARGEST_MiB),
        (CHECK, "application/json", bomb, 1),
        (CHECK, "application/json", nodes(MiB // 2), 1),
        (CHECK, "application/json", nodes(8 * MiB - 200), 1),
        (CHECK, "application/json", text, 1),
    )
    service.ask("POST", CHECK, service.run, content=nodes(200), headers={"content-type": "application/json"})
    time.sleep(1)
    before, idle = service.process.memory_info().rss, work_left(service)
    stop, seconds = Event(), list[float]()
    thread = Thread(target=probe, args=(service, stop, seconds))
    thread.start()
    try:
        for kind in kinds:
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(lambda _, kind=kind: send_and_leave(service, *kind), range(6)))
            time.sleep(1)
        time.sleep(5)
    finally:
        stop.set()
        thread.join()
    left, grown = work_left(service), service.process.memory_info().rss - before
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(f"health p99 {p99:.3f} s, worst {ordered[-1]:.3f} s of {len(ordered)}; {grown / MiB:.0f} MiB; {left:.2f} s")
    assert p99 <= 1.0
    assert grown < 150 * MiB
    assert left < idle + 0.3
    assert not find_confined_children(service)
