"""The model server as a real process: clients that hang up, ask for too much, send half, or send nonsense."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from trainyard.serve.listening import BODY_S, HEAD_S, MAX_CONNECTIONS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("attacked-model-server")]
LATE_LOOP = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if messages | length > 3 %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
)


@dataclass
class Attacked:
    client: httpx.Client
    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def refused(self, path: str, **body: Any) -> tuple[int, str]:
        answer = self.post(path, **body)
        return answer.status_code, str(answer.json()["error"]["message"])

    def alive(self) -> bool:
        """Whether somebody else's short request is answered, by the one thread that computes."""
        return self.post("/v1/completions", model="tiny", prompt="a", max_tokens=1).status_code == 200

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture(scope="module")
def attacked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    shutil.copytree(tiny_model, folder / "tiny")
    (folder / "tiny" / "chat_template.jinja").write_text(LATE_LOOP)
    command = [sys.executable, "-m", "trainyard.serve.server", "--model", "tiny", "--folder", str(folder)]
    command += ["--adapter-root", str(folder / "adapters"), "--threads", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 280
        while not list(folder.glob("*.json")):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        facts = json.loads(next(folder.glob("*.json")).read_text())
        with httpx.Client(base_url=facts["url"], timeout=120, trust_env=False) as client:
            yield Attacked(client, facts["port"], folder, process)
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert "Traceback" not in (folder / "log").read_text()


def request_bytes(path: str, body: bytes, *, length: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def test_too_many_prompts_tokens_or_logprobs_are_refused_before_any_work(attacked: Attacked) -> None:
    many = attacked.refused("/v1/completions", model="tiny", prompt=["a"] * 2000, echo=True, logprobs=20)
    assert many == (400, "prompt has 2,000 texts; one request takes 256.")
    long = attacked.refused("/v1/completions", model="tiny", prompt=[[5] * 2000] * 40, max_tokens=1)
    assert long[0] == 400
    assert "80,040 tokens" in long[1]
    response = attacked.refused("/v1/completions", model="tiny", prompt=[[5] * 1000] * 60, max_tokens=0, logprobs=20)
    assert response[0] == 400
    assert "1,048,576 log probabilities" in response[1]


def test_the_work_stops_when_the_client_hangs_up(attacked: Attacked) -> None:
    """Forty prompts of 1,000 tokens take minutes; half a second later nobody waits for them, and nobody else does."""
    body = json.dumps({"model": "tiny", "prompt": [[5] * 1200] * 40, "max_tokens": 3, "echo": True, "logprobs": 19})
    with attacked.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", body.encode()))
        time.sleep(1)
    busy = psutil.Process(attacked.process.pid).cpu_times()
    assert attacked.alive()
    used = psutil.Process(attacked.process.pid).cpu_times()
    assert used.user + used.system - busy.user - busy.system < 5


def test_a_template_that_loops_late_costs_its_own_client_alone(attacked: Attacked) -> None:
    turns = [{"role": ("user", "assistant")[number % 2], "content": "a"} for number in range(5)]
    assert attacked.post("/v1/chat/completions", model="tiny", messages=turns[:1], max_tokens=1).status_code == 200
    status, message = attacked.refused("/v1/chat/completions", model="tiny", messages=turns, max_tokens=1)
    assert status == 400
    assert message.startswith("E-CHAT-TEMPLATE: The chat template used more than 1 s of processor time")
    assert attacked.alive()


@pytest.mark.parametrize("alias", ["a\x1b[31m", "a\nb", "\u202ea", " a", "a" * 257, ""])
def test_an_alias_that_cannot_be_shown_is_refused(attacked: Attacked, alias: str) -> None:
    assert attacked.refused("/v1/aliases", alias=alias, model="tiny")[0] == 400
    assert [model["id"] for model in attacked.client.get("/v1/models").json()["data"]] == ["tiny"]


def test_aliases_have_a_largest_number(attacked: Attacked) -> None:
    answers = [attacked.post("/v1/aliases", alias=f"alias-{number}", model="tiny") for number in range(257)]
    assert {answer.status_code for answer in answers[:-1]} == {200}
    assert answers[-1].json()["error"]["message"] == "256 aliases are set; remove one first."
    assert attacked.post("/v1/aliases", alias="alias-7", model="tiny").status_code == 200  # it is there: nothing grows
    for number in range(256):
        attacked.post("/v1/aliases", alias=f"alias-{number}", model=None)


def test_paths_that_cannot_be_resolved_are_refused(attacked: Attacked) -> None:
    roots = attacked.folder / "adapters"
    roots.mkdir()
    (roots / "one").symlink_to(roots / "two")
    (roots / "two").symlink_to(roots / "one")
    for path in ("a" * 5000, f"{roots}/" + "a/" * 2500, f"{roots}/{'a' * 300}", str(roots / "one"), "/\0", "../.."):
        status, message = attacked.refused("/v1/load_lora_adapter", lora_name="x", lora_path=path)
        assert status in (400, 404), message
    assert attacked.refused("/v1/load_lora_adapter", lora_name="a\x1b", lora_path=str(roots))[0] == 400


STRING: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "minLength": "x"}}}
SCHEMAS: list[dict[str, Any]] = [
    STRING,
    {"type": "object", "properties": {"a": {"type": "string", "minLength": [1]}}},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 1e308}}},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": -5}}},
    {"type": "object", "properties": {"a": {"type": {}}}},
    {"type": "object", "properties": [1]},
    {"type": "object", "required": "a"},
    {"allOf": [[]]},
    {"$ref": "#/nowhere"},
    {"enum": {}},
    {"items": 3, "minItems": {}},
]
BODIES = [
    b"", b"{", b"[]", b"[1]", b"null", b'"a"', b"\xff", b'{"model": 1}', b'{"model": "tiny", "prompt": [[1], "a"]}',
    b'{"model": "tiny", "prompt": [[1.5]]}', b'{"model": "tiny", "prompt": [-1]}', b'{"model": "tiny", "prompt": [[]]}',
    b'{"model": "tiny", "prompt": [99999999999999999999999]}', b'{"model": "tiny", "prompt": [true]}',
    b'{"model": "tiny", "prompt": "a", "max_tokens": 1e400}', b'{"model": "tiny", "prompt": "\\ud800"}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": [[]]}]}', b"[" * 100_000,
    b'{"alias": "a", "model": {}}', b'{"lora_name": 1, "lora_path": []}', b'{"lora_name": "a", "lora_path": "\\ud800"}',
]  # fmt: skip
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/aliases")


def test_malformed_bodies_and_schemas_are_never_500(attacked: Attacked) -> None:
    headers = {"content-type": "application/json"}
    answers = [attacked.client.post(path, content=body, headers=headers) for body in BODIES for path in PATHS]
    turns = [{"role": "user", "content": "a"}]
    for schema in SCHEMAS:
        response_format = {"type": "json_schema", "json_schema": {"schema": schema}}
        chat = {"model": "tiny", "messages": turns, "max_tokens": 8, "response_format": response_format}
        answers.append(attacked.client.post("/v1/chat/completions", json=chat))
    odd = [
        (answer.request.url.path, answer.request.content[:80], answer.text[:200])
        for answer in answers
        if answer.status_code >= 500
    ]
    assert odd == []
    assert attacked.refused("/v1/chat/completions", model="tiny", messages=turns, response_format={
        "type": "json_schema", "json_schema": {"schema": STRING}})[1].startswith("E-JSON-SCHEMA")  # fmt: skip


@pytest.mark.faults
def test_half_requests_are_ended_and_do_not_keep_others_out(attacked: Attacked) -> None:
    """1,500 half heads: the oldest give way to who comes, and all are closed within the deadline."""
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(attacked.connect()) for _ in range(1500)]
        for connection in halves:
            with contextlib.suppress(OSError):  # it gave way already
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        assert httpx.get(f"http://127.0.0.1:{attacked.port}/health", timeout=20).status_code == 200
        assert psutil.Process(attacked.process.pid).num_fds() < MAX_CONNECTIONS + 100
        deadline = time.monotonic() + 3 * HEAD_S + 20
        while (left := psutil.Process(attacked.process.pid).num_fds()) > 60:
            assert time.monotonic() < deadline, left
            time.sleep(0.5)


@pytest.mark.faults
def test_a_half_body_is_ended(attacked: Attacked) -> None:
    with attacked.connect() as connection:
        connection.settimeout(BODY_S + 60)
        connection.sendall(request_bytes("/v1/completions", b'{"model"', length=4000))
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    assert attacked.alive()


@pytest.mark.faults
def test_drops_of_a_head_do_not_move_its_deadline(attacked: Attacked) -> None:
    with attacked.connect() as connection:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 6 * HEAD_S:
                connection.sendall(b"G")
                time.sleep(1)
        assert time.monotonic() - started < 4 * HEAD_S


@pytest.mark.faults
def test_thirty_clients_that_hang_up_leave_a_server_that_answers(attacked: Attacked) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1500, "stream": True}).encode()
    for _ in range(30):
        with attacked.connect() as connection:
            connection.sendall(request_bytes("/v1/completions", body))
            connection.recv(200)
    assert attacked.alive()
