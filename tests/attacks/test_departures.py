"""Clients that hang up: what waits does not begin, and what only makes an answer ends within five seconds.

The service is a process of its own, and clients are sockets.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import psutil
import pytest

from tests.api_process import serving
from trainyard.app.chat import Conversation, model_client
from trainyard.app.run_records import RunRecord
from trainyard.cancellation import CallerLeft, Departure, bind_departure, run_process
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.data.rows import ROWS_FILE, Message, SftRow, write_rows
from trainyard.operations.serving import ChatInput
from trainyard.operations.table import OPERATIONS, find_route
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.stores.jobs import JobRecord, JobStore
from trainyard.stores.secret_files import TokenFile
from trainyard.surfaces.invocation import ends_with_caller
from trainyard.surfaces.rest.routes import MAX_WORKING
from trainyard.train.checkpoint.checkpoints import commit

pytestmark = pytest.mark.integration

RUN, JOB = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"
KEY = "a" * 64
GIB = 1 << 30
CLOSED = "499"
LEFT_S = 20.0
SAMPLE = re.compile(r'trainyard_requests_total\{method="\w+",operation="([^"]+)",status="(\d+)"\} (\S+)')


@dataclass(frozen=True)
class RunningService:
    """A running service, its folder, and a token that may do everything."""

    port: int
    home: Path
    token: str

    @property
    def process(self) -> psutil.Process:
        return next(child for child in psutil.Process().children() if f"{self.port}" in child.cmdline())

    def send(self, method: str, path: str, body: Any = None, accept: str = "*/*") -> socket.socket:
        """A connection on which a whole request was sent."""
        content = b"" if body is None else json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Accept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        return connection

    def counts(self) -> dict[tuple[str, str], int]:
        """(operation, status) -> answers so far."""
        text = httpx.get(
            f"http://127.0.0.1:{self.port}/metrics", headers={"authorization": f"Bearer {self.token}"}, timeout=30
        ).text
        return {(name, status): int(float(count)) for name, status, count in SAMPLE.findall(text)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("api") / "home"
    with pytest.MonkeyPatch.context() as patch, silent_server() as prefect:
        patch.delenv("PREFECT_HOME", raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{prefect.port}/api")
        patch.setenv("TRAINYARD_API_HEAVY_CALLS", "64")
        store_large_things(home)
        token = TokenFile(home).create("everything", "admin", "", 1)
        with serving() as port:
            yield RunningService(port, home, token)


def store_large_things(home: Path) -> None:
    """A run with 400,000 rows and a quarantine of 100 GiB of nothing, and a job with a checkpoint of 100 GiB."""
    settings = load_settings(home=home)

    def produce(folder: Path) -> Produced:
        out = folder / "sft"
        out.mkdir()
        row = SftRow([Message("user", "Why? " * 40), Message("assistant", "So it is. " * 40)])
        write_rows(out / ROWS_FILE, Port.SFT, [row] * 400_000)
        (out / QUARANTINE_FILE).write_bytes(b"")
        return Produced(outputs={Port.SFT: ProducedSet(folder="sft", rows=400_000, facts={})})

    store = ArtifactStore(settings.artifacts)
    store.produce(KEY, produce)
    with (store.folder(KEY) / "sft" / QUARANTINE_FILE).open("r+b") as stream:
        stream.truncate(100 * GIB)
    record = RunRecord(settings.runs / RUN)
    record.begin({"name": "large", "tenant": "default", "nodes": [{"id": "validator", "type": "validator"}]})
    record.emit("validator", "finished", key=KEY, rows={"sft": 400_000}, facts={})
    work = home / "work" / "large"

    def write_weights(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"")

    commit(work / "checkpoints", 10, write_weights)
    with (work / "checkpoints" / "step-0000000010" / "weights.bin").open("r+b") as stream:
        stream.truncate(100 * GIB)
    JobStore(home / "jobs").put(
        JobRecord(id=JOB, stage="sft", method="lora", backend="native", work=str(work), state="completed")
    )


@dataclass
class SilentServer:
    """A server that reads requests and never answers."""

    port: int
    connections: list[socket.socket]

    def is_left(self) -> bool:
        """Whether a client has come, and each one has closed its connection."""
        return bool(self.connections) and all(is_closed(connection) for connection in self.connections)


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


@contextmanager
def silent_server() -> Iterator[SilentServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SilentServer(listener.getsockname()[1], [])

        def accept() -> None:
            while True:
                try:
                    server.connections.append(listener.accept()[0])
                except OSError:  # closed at the end
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in server.connections:
                connection.close()


def wait_until(true: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until it was true; None if it was not in time."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


def measure_cpu(service: RunningService) -> float:
    """CPU seconds that the service and its children use within a second."""
    family = [service.process, *service.process.children(recursive=True)]
    before = sum(sum(process.cpu_times()[:2]) for process in family)
    time.sleep(1)
    return sum(sum(process.cpu_times()[:2]) for process in family if process.is_running()) - before


# --- nothing begins -------------------------------------------------------------------------------------------------

VALUES = {"integer": 1, "array": [], "object": {}, "number": 1.0, "boolean": True}
SESSION = {"session": "session-000000000000"}
SPECIAL: dict[str, Any] = {
    "jobs create": {"parameters": {"dataset": {"path": "a.jsonl"}}},
    "check": {"files": [{"name": "a", "nodes": []}]}, "compare": {"job": ["x", "y"]},
    "backends cancel": {"name": "native"}, "graph neighbors": {"key": "0" * 32},
    "corpus apprenticeship": {"prompt": "a", "shadow": "b", "verdict": "c"},
    **dict.fromkeys((f"sessions {verb}" for verb in ("close", "heartbeat", "result", "resume", "show")), SESSION),
    "sessions output": {**SESSION, "name": "forward-1-logits"},
}  # fmt: skip
"""Values of fields where one of their type does not do."""
SESSIONS = frozenset(name for name, row in OPERATIONS.items() if row.keeps_replies)
"""Verbs of a session that is not there are refused before anything waits."""
REMOTE = sorted(name for name, row in OPERATIONS.items() if not row.local and name not in SESSIONS)


def request_for(name: str) -> tuple[str, str, Any]:
    """Method, path with query, and body of a request that is read without a complaint."""
    method, path = find_route(name)
    model = OPERATIONS[name].request
    schema = model.model_json_schema()
    fields = {field: value_for(schema["properties"][field], schema) for field in schema.get("required", ())}
    fields |= SPECIAL.get(name, {})
    for field in re.findall(r"\{(\w+)\}", path):
        path = path.replace(f"{{{field}}}", str(fields.pop(field, "1")))
    whole = OPERATIONS[name].body
    body: Any = fields.pop(whole, {}) if whole else fields
    if method in ("GET", "DELETE") or whole:
        path += f"?{urlencode(fields, doseq=True)}"
    return method, path, None if method in ("GET", "DELETE") else body


def value_for(field: dict[str, Any], schema: dict[str, Any]) -> Any:
    """A value that a field takes."""
    if "$ref" in field:
        field = schema["$defs"][field["$ref"].rpartition("/")[2]]
    if "enum" in field:
        return field["enum"][0]
    return VALUES.get(field.get("type", "string"), "x")


def occupy(service: RunningService) -> list[socket.socket]:
    """Keep every thread of the service waiting for Prefect."""
    return [service.send("GET", "/api/v1/jobs") for _ in range(MAX_WORKING)]


def test_nothing_begins_for_a_caller_who_left_while_it_waited(service: RunningService) -> None:
    """Each operation of the table, also one that changes something: none has an answer of its own."""
    occupied = occupy(service)
    time.sleep(2)
    before = service.counts()
    waiting = [service.send(*request_for(name)) for name in REMOTE]
    time.sleep(2)
    for connection in waiting:
        connection.close()
    time.sleep(1)
    for connection in occupied:
        connection.close()

    def answers() -> dict[str, set[str]]:
        statuses = dict[str, set[str]]()
        for (name, status), count in service.counts().items():
            if count > before.get((name, status), 0):
                statuses.setdefault(name, set()).add(status)
        return statuses

    assert wait_until(lambda: answers().keys() >= set(REMOTE), 20) is not None, set(REMOTE) - answers().keys()
    unexpected = {name: statuses for name, statuses in answers().items() if name in REMOTE and statuses != {CLOSED}}
    assert unexpected == {}
    assert measure_cpu(service) < 0.5


def test_a_small_draft_is_expanded_at_once(service: RunningService) -> None:
    """A child of its own does not make the editor slow."""
    chain = {"name": "c", "nodes": [{"type": "data_source", "config": {"path": "x.jsonl"}}, {"type": "trainer"}]}
    seconds = list[float]()
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}/api/v1", timeout=60) as client:
        client.headers["authorization"] = f"Bearer {service.token}"
        for _ in range(8):
            began = time.monotonic()
            assert client.post("/chains/expand", json={"target": chain}).status_code == 200
            seconds.append(time.monotonic() - began)
    print(f"expanded in {sorted(seconds)[4]:.3f} s")
    assert sorted(seconds)[4] < 4.0  # on two busy cores; 0.1 s on idle ones


# --- what has begun ends --------------------------------------------------------------------------------------------

LARGE_CHAIN = {"name": "c", "nodes": [{"type": "data_source", "config": {"path": "x.jsonl"}}] * 9_000}
EXPENSIVE = {
    "lines of a quarantine": ("artifacts show", f"/api/v1/artifacts/{RUN}/validator/sft"),
    "rows that do not contain a text": ("artifacts rows", f"/api/v1/artifacts/{RUN}/validator/sft/rows?text=zebra"),
    "bytes of a checkpoint": ("jobs verify", f"/api/v1/jobs/{JOB}/verify"),
    "a draft of 9,000 nodes": ("chains expand", "/api/v1/chains/expand"),
    "Prefect, which does not answer": ("jobs list", "/api/v1/jobs"),
}


@pytest.mark.parametrize("case", EXPENSIVE)
def test_what_only_makes_an_answer_ends_with_its_caller(service: RunningService, case: str) -> None:
    name, path = EXPENSIVE[case]
    before = service.counts().get((name, CLOSED), 0)
    body = {"chains expand": {"target": LARGE_CHAIN}, "jobs verify": {}}.get(name)
    connections = [service.send(find_route(name)[0], path, body) for _ in range(3)]
    time.sleep(1)
    assert not any(is_answered(connection) for connection in connections), "it takes longer than its caller stays"
    for connection in connections:
        connection.close()
    ended = wait_until(lambda: service.counts().get((name, CLOSED), 0) >= before + 3, LEFT_S)
    assert ended is not None, service.counts()
    left = measure_cpu(service)
    print(f"{case}: ended after {ended:.2f} s, {left:.2f} s of CPU left in the second after it")
    assert left < 0.5


def is_answered(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def test_a_question_to_a_slow_model_server_ends_with_its_caller() -> None:
    """The connection to the model server is closed, so that it stops generating as well."""
    departure, failures = Departure(), list[BaseException]()

    def ask(url: str) -> None:
        try:
            with bind_departure(departure), model_client(url) as client:
                options = ChatInput(adapter="default/assistant/v1")
                Conversation(client, "assistant", options).ask("Why?")
        except (CallerLeft, httpx.HTTPError) as error:
            failures.append(error)

    with silent_server() as server:
        thread = threading.Thread(target=ask, args=(f"http://127.0.0.1:{server.port}",))
        thread.start()
        assert wait_until(lambda: bool(server.connections), 10) is not None
        assert not server.is_left()
        departure.note()
        thread.join(LEFT_S)
        assert not thread.is_alive()
        assert server.is_left()
    assert len(failures) == 1


def test_a_process_ends_with_the_caller_for_whom_it_runs() -> None:
    departure, failures = Departure(), list[BaseException]()

    def work() -> None:
        try:
            with bind_departure(departure):
                run_process(["sleep", "60"], timeout_s=60, environment={"PATH": "/usr/bin:/bin"})
        except CallerLeft as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    departure.note()
    thread.join(LEFT_S)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_what_changes_something_is_not_ended() -> None:
    """The rule: a read and a question end with their caller, a write finishes."""
    assert all(ends_with_caller(name) for name, row in OPERATIONS.items() if row.scope.value == "read")
    assert ends_with_caller("adapters ask")
    assert ends_with_caller("audit verify")
    changing = ("run", "chains create", "jobs create", "jobs cancel", "adapters promote", "gc", "sessions step")
    assert not any(ends_with_caller(name) for name in changing)
