"""Requests as other tools document them, sent to the service as they are written, and requests that are wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.answering import answering
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.integration

BODIES = REPOSITORY / "tests" / "resources" / "bodies"
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with (
        answering() as url,
        httpx.Client(base_url=f"{url}/api/v1", headers={"authorization": "Bearer owner"}, timeout=120) as client,
    ):
        yield client


def read_body(name: str) -> bytes:
    return (BODIES / f"{name}.json").read_bytes()


def codes(answer: httpx.Response) -> set[str]:
    problem: dict[str, Any] = answer.json()
    return {problem["code"], *(error["code"] for error in problem["errors"])}


def test_a_chain_is_created_as_it_is_documented(client: httpx.Client) -> None:
    answer = client.post("/chains", content=read_body("chain-three-nodes"), headers=JSON)
    assert answer.status_code == 201, answer.text
    chain = answer.json()
    assert (chain["name"], chain["nodes"], chain["revision"]) == ("qa-pipeline", 3, 1)
    assert answer.headers["etag"] == f'"{chain["etag"]}"'
    chain_response = client.get(f"/chains/{chain['id']}")
    assert chain_response.json()["digest"] == chain["digest"]
    unchanged = client.get(f"/chains/{chain['id']}", headers={"if-none-match": answer.headers["etag"]})
    assert unchanged.status_code == 304
    assert client.get("/chains/templates").json()["templates"][0]["name"] == "qa-pipeline"


@pytest.mark.parametrize(("name", "code"), [
    ("lora-job-mlx", ""), ("dpo-job-trl", "R-PATH-ROOT"), ("job-data-worker", "R-DATA-WORKER"),
])  # fmt: skip
def test_a_job_is_read_as_it_is_documented(client: httpx.Client, name: str, code: str) -> None:
    answer = client.post("/jobs", content=read_body(name), headers=JSON)
    assert answer.status_code in (422, 424), answer.text
    assert not {code for code in codes(answer) if code.startswith("E-SPEC") or code in ("E-PARAMETER", "E-JSON")}
    assert not code or code in codes(answer)


def test_what_is_wrong_is_refused_quickly_and_not_stored(client: httpx.Client) -> None:
    cycle = [{"id": "a", "type": "validator", "needs": ["b"]}, {"id": "b", "type": "validator", "needs": ["a"]}]
    ring = [{"id": f"n{at}", "type": "validator", "needs": [f"n{at - 1}"]} for at in range(1, 10_000)]
    many = [{"type": "validator"}] * 10_001
    start_s = time.monotonic()
    ring.append({"id": "n0", "type": "validator", "needs": ["n9999"]})
    named = {"type": "trainer", "config": {"stage": "sfft"}}
    expected: list[tuple[list[dict[str, Any]], str, str | None, str]] = [
        (cycle, "E-SPEC-GRAPH", "b", "needs"),
        (ring, "E-SPEC-GRAPH", "n2", "needs"),
        (many, "E-SPEC-SYNTAX", None, "nodes"),
        ([{"type": "traner"}], "E-SPEC-TYPE", "traner", "type"),
        ([{"type": "data_source", "config": {"path": "a"}}, named], "E-SPEC-VALUE", "trainer", "config.stage"),
    ]
    for nodes, code, node, field in expected:
        answer = client.post("/chains", json={"nodes": nodes})
        assert answer.status_code == 422, answer.text
        reasons = {(error["code"], error["node"], error["field"]) for error in answer.json()["errors"]}
        assert (code, node, field) in reasons, sorted(reasons)[:5]
    assert time.monotonic() - start_s < 120
    twice = client.post("/chains", content=b'{"nodes": [], "nodes": []}', headers=JSON)
    assert (twice.status_code, twice.json()["code"]) == (400, "E-JSON")
    assert client.get("/chains").json() == {"chains": [], "total": 0}


def test_the_longest_chain_is_stored_shown_and_planned_in_time(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "a?"}]}\n')
    source = {"type": "data_source", "config": {"path": "rows.jsonl"}}
    start_s = time.monotonic()
    stored = client.post("/chains", json={"name": "long", "nodes": [source, *[{"type": "validator"}] * 9_999]})
    assert stored.status_code == 201, stored.text[:1000]
    assert stored.json()["nodes"] == 10_000
    assert time.monotonic() - start_s < 120
    chain_response = client.get(f"/chains/{stored.json()['id']}")
    assert len(chain_response.json()["body"]["nodes"]) == 10_000
    assert time.monotonic() - start_s < 120
    assert client.delete(f"/chains/{stored.json()['id']}").status_code == 503, "whether it runs, only Prefect knows"


def test_a_run_takes_no_graph(client: httpx.Client) -> None:
    chain = json.loads(read_body("chain-three-nodes"))
    stored = client.post("/chains", json=chain).json()
    inline = client.post(f"/chains/{stored['id']}/run", json={"nodes": chain["nodes"]})
    assert (inline.status_code, inline.json()["code"]) == (422, "E-PARAMETER")
    missing = client.post("/chains/chain-000000000000/run", json={})
    assert (missing.status_code, missing.json()["code"]) == (404, "E-NOT-FOUND")


def test_two_writers_get_the_difference(client: httpx.Client) -> None:
    chain = json.loads(read_body("chain-three-nodes"))
    stored = client.post("/chains", json=chain)
    path = f"/chains/{stored.json()['id']}"
    assert client.put(path, json={**chain, "description": "One."}).status_code == 422
    etag = {"if-match": stored.headers["etag"]}
    assert client.put(path, json={**chain, "description": "One."}, headers=etag).json()["revision"] == 2
    late = client.put(path, json={**chain, "description": "Two."}, headers=etag)
    assert (late.status_code, late.json()["code"]) == (409, "E-CONFLICT")
    assert (
        "Changed since revision 1: description: None -> 'One.'. Changed by you: description: None -> 'Two.'"
        in (late.json()["why"])
    )
