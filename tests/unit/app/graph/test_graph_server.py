"""The graph over HTTP, and its verbs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from trainyard.app.context import Context
from trainyard.app.graph import count_graph, export_graph, query_graph
from trainyard.app.graph_server import GraphServer, bind_socket
from trainyard.errors import InvalidInput, LimitExceeded, Unavailable
from trainyard.operations.graph import ExportInput, GraphInput, QueryInput
from trainyard.settings import settings
from trainyard.stores.graph.facts import Entity, Mutation
from trainyard.stores.graph.local import MemoryGraph
from trainyard.stores.graph.remote import HttpGraph, open_graph
from trainyard.surfaces.cli.command import render

JANE = Mutation("default", "meetings", "a.md", hashlib.sha256(b"a").hexdigest(), "v1", (Entity("person", "Jane Doe"),))


@pytest.fixture
def memory() -> MemoryGraph:
    return MemoryGraph()


@pytest.fixture
def client(memory: MemoryGraph) -> Iterator[TestClient]:
    with TestClient(GraphServer(memory, "secret").app(), base_url="http://127.0.0.1") as client:
        client.headers["authorization"] = "Bearer secret"
        yield client


def test_a_graph_over_http_is_the_graph(client: TestClient, memory: MemoryGraph, tmp_path: Path) -> None:
    graph = HttpGraph("http://127.0.0.1", http=client)
    assert graph.mutate([JANE])[0].new_entities == 1
    assert graph.mutate([JANE])[0].already
    assert graph.mutate([]) == []
    assert graph.has([JANE.document, "f" * 32]) == {JANE.document}
    assert graph.stats() == memory.stats()
    assert graph.stats("other").entities == 0
    assert list(graph.dump()) == list(memory.dump())
    assert graph.export(tmp_path / "graph.jsonl") == 2
    with pytest.raises(InvalidInput, match="E-GRAPH-QUERY"):
        graph.query("RETURN 1")


def test_a_wrong_mutation_is_told_by_its_field(client: TestClient) -> None:
    reply = client.post("/v1/graph/mutate", json={"mutations": [{"tenant": "../x"}]})
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == "E-GRAPH-QUERY"


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        ("not json", "application/json", 422, "E-GRAPH-QUERY"),
        ("[]", "application/json", 422, "E-GRAPH-QUERY"),
        ('{"mutations": 1}', "application/json", 422, "E-GRAPH-QUERY"),
        ('{"mutations": []}', "text/plain", 422, "E-GRAPH-QUERY"),
        ('{"mutations": [' + ",".join(["{}"] * 5_001) + "]}", "application/json", 413, "E-GRAPH-QUERY"),
    ],
    ids=["text", "list", "number", "form", "many"],
)
def test_bodies_that_are_refused(client: TestClient, body: str, kind: str, status: int, code: str) -> None:
    reply = client.post("/v1/graph/mutate", content=body, headers={"content-type": kind})
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_without_the_token_only_health_answers(client: TestClient) -> None:
    client.headers["authorization"] = "Bearer wrong"
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/graph/stats").status_code == 401
    with pytest.raises(Unavailable, match="E-AUTH"):
        HttpGraph("http://127.0.0.1", http=client).stats()


def test_a_name_that_points_here_is_refused(client: TestClient) -> None:
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 400


def test_it_listens_off_loopback_only_with_a_token() -> None:
    with pytest.raises(InvalidInput, match="E-AUTH"):
        bind_socket("0.0.0.0", 0, None)
    with bind_socket("127.0.0.1", 0, None) as listener:
        listener.listen()
        with pytest.raises(LimitExceeded, match="E-PORT"):
            bind_socket("127.0.0.1", listener.getsockname()[1], None)


def test_lost_answers_are_asked_for_again(memory: MemoryGraph) -> None:
    calls = 0

    def flaky(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise httpx.ReadError("reset")
        if calls == 2:
            return httpx.Response(503, text="busy")
        return httpx.Response(200, json={"documents": []})

    waits: list[float] = []
    http = httpx.Client(transport=httpx.MockTransport(flaky), base_url="http://graph")
    with HttpGraph("http://graph", http=http, sleep=waits.append) as graph:
        assert graph.has([]) == set()
    assert waits == [0.5, 1.0]


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    http = httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://graph")
    with HttpGraph("http://graph", http=http, sleep=lambda _s: None) as graph, pytest.raises(Unavailable) as caught:
        graph.stats()
    assert caught.value.code == "E-GRAPH-STORE"


@pytest.mark.slow
def test_the_verbs_ask_this_homes_graph(tmp_path: Path) -> None:
    context = Context(settings(), say=lambda _text: None)
    with open_graph("", settings()) as graph:
        graph.mutate([JANE])
    rows = query_graph(QueryInput(cypher="MATCH (e:Entity) RETURN e.name AS name"), context)
    assert render("graph query", rows).splitlines()[-1].strip() == "Jane Doe"
    counts = count_graph(GraphInput(), context)
    assert counts.entities_by_kind == {"person": 1}
    assert "person" in render("graph stats", counts)
    written = export_graph(ExportInput(file=tmp_path / "graph.jsonl"), context)
    assert render("graph export", written).endswith(": 2 lines")


def test_the_command_serves_until_it_is_stopped(home: Path) -> None:
    argv = [sys.executable, "-m", "trainyard", "serve", "--role", "graph", "--port", "0"]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = next(word for word in server.stderr.readline().split() if word.startswith("http")).rstrip(":")
    with open_graph(url, settings()) as graph:
        assert graph.mutate([JANE])[0].new_entities == 1
    server.terminate()
    server.communicate(timeout=60)
    with open_graph("", settings()) as graph:
        assert graph.stats().entities == 1
