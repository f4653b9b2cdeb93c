"""Addresses of this machine and of its network in requests of a token: the service and its children reach none.

Two real servers listen here, one of them by a name that the operator allows. The service is a process, so that what its
children connect to is seen, too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.api_process import serving
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

CANARY = "canary-5b1f-inner-service"
PREVIEW = "/data/preview"
SPELLINGS = (
    "http://127.0.0.1:{0}/rows.jsonl", "http://127.1:{0}/rows.jsonl", "http://2130706433:{0}/rows.jsonl",
    "http://0x7f000001:{0}/rows.jsonl", "http://0177.0.0.1:{0}/rows.jsonl", "http://0.0.0.0:{0}/rows.jsonl",
    "http://[::1]:{0}/rows.jsonl", "http://[::ffff:127.0.0.1]:{0}/rows.jsonl", "http://[::]:{0}/rows.jsonl",
    "http://127.0.0.1.:{0}/rows.jsonl", "http://localhost.:{0}/rows.jsonl", "http://ip6-localhost:{0}/rows.jsonl",
    "http://a@127.0.0.1:{0}/rows.jsonl", "http://example.org@127.0.0.1:{0}/rows.jsonl", "HTTP://127.0.0.1:{0}/rows.jsonl",
    "http://\uff11\uff12\uff17.0.0.1:{0}/rows.jsonl", "http:127.0.0.1:{0}/rows.jsonl", "//127.0.0.1:{0}/rows.jsonl",
    "http:\\\\127.0.0.1:{0}\\rows.jsonl", "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/",
    "http://[fd00:ec2::254]/latest/meta-data/", "gopher://127.0.0.1:{0}/rows", "ftp://127.0.0.1:{0}/rows.jsonl",
    "s3://rows?endpoint=http://127.0.0.1:{0}", "gs://127.0.0.1:{0}/rows.jsonl", "hub:http://127.0.0.1:{0}/rows",
    "sql://127.0.0.1:{0}/rows", "postgresql://127.0.0.1:{0}/rows", "file://127.0.0.1:{0}/rows.jsonl",
)  # fmt: skip

ENDPOINT = "http://127.0.0.1:9/v1"
"""Of the operator; nothing answers there."""
SERVERS = ("generator", "judge", "target")
"""Which node of a chain asks a server at an address of the chain's."""
AT_ONCE = 4
"""Spellings of the default tests. Each takes seconds, most of them waiting for names that nobody resolves."""


@dataclass
class InnerServer:
    """A server that nobody may ask: it remembers who did."""

    redirect: str = ""
    requested_paths: list[str] = field(default_factory=list)
    port: int = 0

    @contextmanager
    def listening(self) -> Iterator[InnerServer]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requested_paths.append(self.path)
                self.send_response(302 if outer.redirect else 200)
                self.send_header("location", outer.redirect)
                self.end_headers()
                self.wfile.write(json.dumps({"prompt": CANARY, "completion": CANARY}).encode())

            do_POST = do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            def verify_request(self, request: Any, client_address: Any) -> bool:
                outer.requested_paths.append(f"a connection from {client_address}")
                return True

        with Server(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


@dataclass(frozen=True)
class RunningService:
    """The service and the two servers next to it."""

    client: httpx.Client
    inner: InnerServer
    allowed: InnerServer

    def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path == PREVIEW:
            return self.client.get(f"/api/v1{path}", params=body)
        return self.client.post(f"/api/v1{path}", json=body)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with (
        pytest.MonkeyPatch.context() as patch,
        InnerServer().listening() as inner,
        InnerServer().listening() as allowed,
    ):
        home = tmp_path_factory.mktemp("api") / "home"
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_ALLOW_PRIVATE_URLS", '["localhost"]')
        patch.setenv("TRAINYARD_API_HEAVY_CALLS", "16")
        patch.setenv("TRAINYARD_ENDPOINTS", json.dumps({"house": {"base_url": ENDPOINT}}))
        headers = {"authorization": f"Bearer {TokenFile(home).create('ci', 'admin', '', 1)}"}
        with (
            serving() as port,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
        ):
            yield RunningService(client, inner, allowed)


def bodies(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that take an address, each with this one."""
    trainer = {"type": "trainer", "config": {"hyperparameters": {"max_steps": 1}}}
    source = {"name": "guide", "nodes": [{"type": "data_source", "config": {"url": url}}, trainer]}
    path = {"name": "guide", "nodes": [{"type": "data_source", "config": {"path": url}}, trainer]}
    yield PREVIEW, {"path": url}
    for chain in (source, path):
        yield "/check", {"files": [chain]}
        yield "/plan", {"target": chain}
        yield "/chains", chain
    yield "/jobs", {"name": "guide", "dataset": {"path": url}}
    yield "/jobs", {"name": "guide", "dataset": {"url": url}}
    yield "/jobs", {"name": "guide", "dataset": {"path": "rows.jsonl"}, "base_model": url}
    yield "/runs", {"target": "qa-pipeline", "parameters": {"documents": url}}
    for chain in (with_server(server, url) for server in SERVERS):
        yield "/check", {"files": [chain]}
        yield "/plan", {"target": chain}
        yield "/chains", chain
    for name, parameters in targets(url):
        yield "/plan", {"target": name, "parameters": parameters}
        yield "/runs", {"target": name, "parameters": parameters}
        yield "/chains", {"template": name, "parameters": parameters}


def with_server(server: str, url: str) -> dict[str, Any]:
    """A chain whose generator, judge or target is asked at this address."""
    generator: dict[str, Any] = {"count": 2}
    evaluator: dict[str, Any] = {}
    target: dict[str, Any] = {"type": "registry"}
    if server == "generator":
        generator |= {"model": "writer", "base_url": url}
    elif server == "judge":
        evaluator = {"benchmarks": [{"type": "judge"}], "judge": {"model": "judge", "base_url": url}}
    else:
        target = {"type": "vllm", "url": url}
    nodes = [
        {"type": "data_source", "config": {"path": "guide.md"}}, {"type": "ai_generator", "config": generator},
        {"type": "validator"}, {"type": "trainer", "config": {"hyperparameters": {"max_steps": 1}}},
        {"type": "evaluator", "config": evaluator}, {"type": "deployer", "config": {"targets": [target]}},
    ]  # fmt: skip
    return {"name": f"asks-{server}", "nodes": nodes}


def targets(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A target of a template's form, in both spellings."""
    target = {"type": "vllm", "url": url}
    yield "qa-pipeline", {"publish": {"targets": [target]}}
    yield "qa-pipeline", {"publish.targets": [target]}


@pytest.mark.parametrize(
    "spelling",
    [*SPELLINGS[:AT_ONCE], *(pytest.param(spelling, marks=pytest.mark.slow) for spelling in SPELLINGS[AT_ONCE:])],
)
def test_no_address_of_this_machine_is_asked(spelling: str, service: RunningService) -> None:
    url = spelling.format(service.inner.port)
    for path, body in bodies(url):
        answer = service.ask(path, body)
        assert answer.status_code < 500 or answer.status_code == 503, (path, answer.text[:500])
        assert CANARY not in answer.text
        assert service.inner.requested_paths == [], (path, url)


@pytest.mark.parametrize("server", SERVERS)
def test_a_chain_that_asks_an_inner_server_is_not_stored(server: str, service: RunningService) -> None:
    for url in (f"http://127.0.0.1:{service.inner.port}/v1", "http://169.254.169.254/", "http://[fd00:ec2::254]/v1"):
        for path in ("/chains", "/check", "/plan"):
            chain = with_server(server, url)
            answer = service.ask(
                path, {"/chains": chain, "/check": {"files": [chain]}, "/plan": {"target": chain}}[path]
            )
            assert answer.status_code == 422, answer.text
            assert answer.json()["code"] == "R-URL"
            assert "private, local or metadata address" in answer.text
    stored = service.client.get("/api/v1/chains").json()["chains"]
    assert f"asks-{server}" not in [chain["name"] for chain in stored]
    assert service.inner.requested_paths == []


@pytest.mark.parametrize("server", SERVERS)
def test_a_chain_may_ask_an_allowed_or_a_configured_server(server: str, service: RunningService) -> None:
    for url in (f"http://localhost:{service.allowed.port}/v1", ENDPOINT):
        answer = service.ask("/check", {"files": [with_server(server, url)]})
        assert answer.status_code == 200, answer.text
        assert "R-URL" not in answer.text


def test_a_target_of_a_form_is_no_inner_server(service: RunningService) -> None:
    for name, parameters in targets("http://169.254.169.254/latest"):
        for path in ("/plan", "/runs"):
            answer = service.ask(path, {"target": name, "parameters": parameters})
            assert (answer.status_code, answer.json()["code"]) == (422, "R-URL"), answer.text


def test_a_preview_of_an_inner_address_says_what_is_refused(service: RunningService) -> None:
    answer = service.ask(PREVIEW, {"path": f"http://127.0.0.1:{service.inner.port}/rows.jsonl"})
    assert answer.status_code == 422
    assert "R-URL" in answer.text
    assert "private, local or metadata address" in answer.text


@pytest.mark.slow  # the first preview of a service imports what encodes rows; `test_addresses.py` has the redirects
def test_an_allowed_name_does_not_lead_further(service: RunningService) -> None:
    """The operator allows `localhost`; what it redirects to is judged again, and by its own name."""
    url = f"http://localhost:{service.allowed.port}/rows.jsonl"
    preview = service.ask(PREVIEW, {"path": url})
    assert preview.status_code == 200, preview.text
    assert CANARY in preview.text
    service.allowed.redirect = f"http://127.0.0.1:{service.inner.port}/rows.jsonl"
    refused = service.ask(PREVIEW, {"path": url})
    assert refused.status_code == 422, refused.text
    assert CANARY not in refused.text
    assert service.inner.requested_paths == []
