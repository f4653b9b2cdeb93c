"""The graph server as a real process over a real database: bodies that are nonsense, queries that never end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from trainyard.app.graph_server import MAX_QUERIES
from trainyard.stores.graph.local import QUERY_S, SLICE_S

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from pathlib import Path
from trainyard.app.graph_server import bind_socket, serve
from trainyard.stores.graph.local import LadybugGraph
listener = bind_socket("127.0.0.1", 0, None)
print(listener.getsockname()[1], flush=True)
with LadybugGraph(Path(sys.argv[1])) as graph:
    graph.stats()
    serve(graph, listener, None)
"""
MANY = "UNWIND range(1, 100000) AS a UNWIND range(1, 1000) AS b UNWIND range(1, 1000) AS c"
SLOW = {"cypher": f"{MANY} WITH a, b, c WHERE (a * b + c) % 7 = 3 RETURN count(*)"}
STUBBORN = {"cypher": "UNWIND range(1, 100000000) AS a UNWIND range(1, 1000000) AS b RETURN count(*)"}
"""It builds a list first, in which the database looks at no limit."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("graph")
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-c", PROGRAM, str(folder / "graph.lbug")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                try:
                    client.get("/health")
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stdout.close()
    assert "Traceback" not in (folder / "log").read_text()


BODIES: list[Any] = [
    "{", "[1]", "null", "1", '"a"', "", '{"cypher": 1}', '{"cypher": "RETURN 1", "parameters": [1]}',
    '{"cypher": "RETURN 1", "parameters": "a"}', '{"cypher": "RETURN $a", "parameters": {"a": {"b": [1, "x", null]}}}',
    '{"cypher": "RETURN $a", "parameters": {"a": [[1], "x"]}}', '{"cypher": "RETURN $b", "parameters": {"a": 1}}',
    '{"cypher": "RETURN 1 / 0"}', '{"cypher": "RETURN \\u0000"}', '{"mutations": [1]}',
    '{"mutations": [{"entities": 1}]}',
    '{"mutations": [[]]}', '{"mutations": {"a": 1}}', '{"documents": [[], {}, 1]}', '{"documents": 1}', "[" * 100_000,
]  # fmt: skip


def test_malformed_bodies_are_never_500(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    answers = {
        (path, body[:60]): client.post(f"/v1/graph/{path}", content=body, headers=headers)
        for path in ("query", "mutate", "has")
        for body in BODIES
    }
    assert {query: answer.text for query, answer in answers.items() if answer.status_code not in (200, 413, 422)} == {}
    bad = answers["query", '{"cypher": "RETURN 1", "parameters": [1]}']
    assert bad.json()["error"]["code"] == "E-GRAPH-QUERY"
    assert client.get("/v1/graph/stats").status_code == 200


@pytest.mark.parametrize("query", [SLOW, pytest.param(STUBBORN, marks=pytest.mark.faults)], ids=["slow", "stubborn"])
@pytest.mark.faults
def test_one_slow_query_does_not_keep_the_others_waiting(client: httpx.Client, query: dict[str, str]) -> None:
    responses: list[httpx.Response] = []
    slow_request = threading.Thread(target=lambda: responses.append(client.post("/v1/graph/query", json=query)))
    slow_request.start()
    try:
        time.sleep(0.5)
        started = time.monotonic()
        assert client.get("/v1/graph/stats").json()["documents"] == 0
        waited = time.monotonic() - started
    finally:
        slow_request.join(timeout=QUERY_S + 60)
    error = responses[0].json()["error"]
    assert error["code"] == "E-GRAPH-QUERY"
    assert f"{SLICE_S:g} s while others wait" in error["why"]
    assert waited < 25  # its slice and a new writer: 3 s on an idle machine, 30 s and more before


@pytest.mark.faults
def test_a_query_alone_may_take_its_time_and_ends(client: httpx.Client) -> None:
    started = time.monotonic()
    answer = client.post("/v1/graph/query", json=STUBBORN)
    assert answer.json()["error"]["code"] == "E-GRAPH-QUERY"
    assert time.monotonic() - started < QUERY_S + 30
    assert client.post("/v1/graph/query", json={"cypher": "RETURN 1 AS one"}).json() == {"rows": [{"one": 1}]}


@pytest.mark.faults
def test_many_slow_queries_are_refused_but_for_a_few(client: httpx.Client) -> None:
    codes: list[str] = []

    def ask() -> None:
        with httpx.Client(base_url=client.base_url, timeout=180, trust_env=False) as own_client:
            codes.append(
                own_client.post("/v1/graph/query", content=json.dumps(SLOW), headers=JSON).json()["error"]["code"]
            )

    threads = [threading.Thread(target=ask) for _ in range(3 * MAX_QUERIES)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert client.get("/health").status_code == 200
    assert client.get("/v1/graph/stats").status_code == 200
    for thread in threads:
        thread.join(timeout=180)
    assert set(codes) == {"E-GRAPH-QUERY", "E-GRAPH-BUSY"}


JSON = {"content-type": "application/json"}
