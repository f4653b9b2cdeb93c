"""Uploads whose disk fails while the body arrives: the client gets a whole answer, the log the traceback once.

The services are processes that may write no file over a megabyte (`RLIMIT_FSIZE`), so that the kernel refuses the
second piece of every large body. `http.client` reads no answer before its whole body is sent: a connection that the
service closes before is an error to it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.api_process import START_S, first_port
from trainyard.compute.services import free_port
from trainyard.settings import load_settings
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

FILE_BYTES = 1 << 20
LARGE = os.urandom(1 << 20) * 12
BYTES = {"content-type": "application/octet-stream"}
LIMITED = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_BYTES}, {FILE_BYTES}));"
TRACE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Service:
    client: httpx.Client
    home: Path
    log: Path
    token: str

    def read_new_log(self, start: int) -> str:
        return self.log.read_text()[start:]


@contextmanager
def serving_limited(folder: Path, role: str) -> Iterator[Service]:
    """A service that may write no large file."""
    home, log = folder / "home", folder / "log"
    load_settings(home=home)
    token = TokenFile(home).create("blue", "run", "blue", 1)
    port = free_port(first_port())
    start = f"{LIMITED} runpy.run_module('trainyard', run_name='__main__')"
    argv = [sys.executable, "-c", start, "serve", "--role", role, "--port", str(port)]
    environment = {**os.environ, "TRAINYARD_HOME": str(home)}
    environment = {
        name: value for name, value in environment.items() if name not in ("PREFECT_API_URL", "PREFECT_HOME")
    }
    with log.open("wb") as stream, subprocess.Popen(argv, env=environment, stdout=stream, stderr=stream) as process:
        try:
            deadline = time.monotonic() + START_S
            while "answers at" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=headers) as client:
                yield Service(client, home, log, token)
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_limited(tmp_path_factory.mktemp("training"), "training") as service:
        yield service


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_limited(tmp_path_factory.mktemp("data"), "data") as service:
        yield service


def require_clean_failure(service: Service, request: httpx.Request, trace_header: str) -> bytes:
    """Send a request twice, by httpx and by http.client; return the second answer."""
    bodies = []
    for send in (send_with_httpx, send_with_standard_library):
        start = len(service.log.read_text())
        status, headers, body = send(service, request)
        log = service.read_new_log(start)
        assert (status, headers["content-type"].partition(";")[0][-4:]) == (500, "json"), body
        (trace,) = TRACE.findall(headers[trace_header])
        assert log.count("Traceback (most recent call last)") == 1, log
        assert log.count(f"trace {trace}") == 1, log
        assert "OSError: " in log or "FileExistsError: " in log
        text = body.decode()
        assert "E-BUG" in text
        assert trace in text
        assert str(service.home) not in text
        assert service.token not in text
        bodies.append(body)
    return bodies[-1]


def send_with_httpx(service: Service, request: httpx.Request) -> tuple[int, httpx.Headers, bytes]:
    """The connection goes on: its next request is answered."""
    answer = service.client.send(request)
    assert "connection" not in answer.headers
    (connection,) = service.client._transport._pool.connections  # type: ignore[attr-defined]
    following = service.client.get("/health")
    assert following.status_code == 200
    assert service.client._transport._pool.connections == [connection]  # type: ignore[attr-defined]
    return answer.status_code, answer.headers, answer.content


def send_with_standard_library(service: Service, request: httpx.Request) -> tuple[int, httpx.Headers, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", request.url.port, timeout=60)
    try:
        headers = {name: value for name, value in request.headers.items() if name != "connection"}
        connection.request(request.method, request.url.raw_path.decode(), request.read(), headers)
        answer = connection.getresponse()
        return answer.status, httpx.Headers(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_rest_answers_with_a_problem_document(training: Service) -> None:
    request = training.client.build_request("PUT", "/api/v1/data/uploads/rows.jsonl", content=LARGE, headers=BYTES)
    problem = json.loads(require_clean_failure(training, request, "x-trace-id"))
    assert (problem["status"], problem["code"], problem["detail"]) == (500, "E-BUG", "The service failed: OSError.")
    assert set(problem) >= {"type", "title", "kind", "trace", "errors"}
    metrics = training.client.get("/metrics").text
    assert 'operation="data upload",status="500"} 2.0' in metrics


def test_openai_wire_answers_with_an_error_object(training: Service) -> None:
    client = training.client
    file = {"file": ("rows.jsonl", LARGE)}
    fields = {"filename": "a.jsonl", "purpose": "fine-tune", "bytes": len(LARGE), "mime_type": "application/jsonl"}
    upload = client.post("/openai/v1/uploads", json=fields).json()["id"]
    parts = f"/openai/v1/uploads/{upload}/parts"
    for request in (
        client.build_request("POST", "/openai/v1/files", files=file, data={"purpose": "fine-tune"}),
        client.build_request("POST", parts, files={"data": ("a.jsonl", LARGE)}),
    ):
        answer = json.loads(require_clean_failure(training, request, "x-request-id"))
        assert set(answer) == {"error"}
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert (answer["error"]["type"], answer["error"]["code"]) == ("server_error", "E-BUG")


def test_tinker_wire_answers_with_a_detail(training: Service) -> None:
    """Its bodies stay in memory: here the folder of its records is a file."""
    (training.home / "tinker").mkdir(exist_ok=True)
    (training.home / "tinker" / "blue").write_text("")
    body = {"tags": ["x" * (7 << 20)], "user_metadata": {}, "sdk_version": "0.38.0"}
    request = training.client.build_request("POST", "/tinker/api/v1/create_session", json=body)
    answer = json.loads(require_clean_failure(training, request, "x-trace-id"))
    assert set(answer) == {"detail", "code"}
    assert answer["code"] == "E-BUG"


def test_data_worker_answers_in_the_shape_of_the_hub(data: Service) -> None:
    made = data.client.post("/api/repos/create", json={"name": "rows", "organization": "blue", "type": "dataset"})
    assert made.status_code == 200, made.text
    entry = {"oid": hashlib.sha256(LARGE).hexdigest(), "size": len(LARGE)}
    batch = {"operation": "upload", "transfers": ["basic"], "objects": [entry]}
    offered = data.client.post("/datasets/blue/rows.git/info/lfs/objects/batch", json=batch).json()["objects"][0]
    link = httpx.URL(offered["actions"]["upload"]["href"]).path
    request = data.client.build_request("PUT", link, content=LARGE, headers=BYTES)
    answer = json.loads(require_clean_failure(data, request, "x-request-id"))
    assert set(answer) == {"error", "code"}
    assert [path for path in data.home.rglob(f"{entry['oid']}*") if path.is_file()] == []


def test_a_failure_before_the_application_is_answered_too(training: Service) -> None:
    """The entrance reads the tokens: they are a folder now."""
    tokens = next(path for path in training.home.rglob("*token*") if path.is_file())
    saved = tokens.rename(tokens.with_name("aside"))
    tokens.mkdir()
    try:
        request = training.client.build_request("PUT", "/api/v1/data/uploads/rows.jsonl", content=LARGE, headers=BYTES)
        answer = training.client.send(request)
        assert (answer.status_code, answer.json()["code"]) == (500, "E-BUG"), answer.text
        assert str(training.home) not in answer.text
    finally:
        tokens.rmdir()
        saved.rename(tokens)
