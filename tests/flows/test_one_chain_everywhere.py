"""One chain through the command line, Python, REST, MCP and Prefect: one digest, and the same weights to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.flows.real_stack import Stack, wait_until
from trainyard import Chain, connect
from trainyard.app.run_records import REFRESH_TAG, read_result
from trainyard.app.services import running
from trainyard.app.training_logs import find_training_logs
from trainyard.compute.events import read_events
from trainyard.stores.audit import AuditLog
from trainyard.stores.auth_string import read_auth
from trainyard.tracing import new_traceparent, trace_id

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A stack whose chains may read its work folder, wherever they are started."""
    stack = Stack(tmp_path_factory.mktemp("stack"), tiny_model)
    stack.environment["TRAINYARD_DATA_ROOTS"] = json.dumps([str(stack.work)])
    stack.write_data()
    up = stack.command("up")
    assert up.returncode == 0, up.stderr
    yield stack
    stack.command("down")
    assert not stack.children()


@pytest.fixture(scope="module")
def body(stack: Stack) -> dict[str, Any]:
    hyperparameters = {"max_steps": 3, "precision": "fp32"}
    config = {"base_model": str(stack.settings.default_base_model), "hyperparameters": hyperparameters, "device": "cpu"}
    source = {"type": "data_source", "config": {"path": str(stack.work / "data.jsonl")}}
    return {"name": "guide", "nodes": [source, {"type": "trainer", "config": config}]}


def address(stack: Stack) -> str:
    service = running(stack.settings, "api")
    assert service is not None

    def answers() -> bool:
        try:
            return httpx.get(f"{service.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(answers, 60, "the API")
    return service.url


def token(stack: Stack) -> str:
    return str(read_auth(stack.settings)).partition(":")[2]


def run_by_command(stack: Stack, body: dict[str, Any]) -> str:
    (stack.work / "chain.json").write_text(json.dumps(body))
    return str(stack.json("run", "chain.json", "--refresh", "--watch")["run_id"])


def run_by_python(stack: Stack, body: dict[str, Any]) -> str:
    with connect(address(stack), token(stack)) as remote:
        return Chain.of(body, on=remote).run(refresh=True, watch=True).run_id


def run_by_rest(stack: Stack, body: dict[str, Any]) -> str:
    headers = {"authorization": f"Bearer {token(stack)}"}
    with httpx.Client(base_url=f"{address(stack)}/api/v1", headers=headers, timeout=60) as client:
        stored = client.post("/chains", json={**body, "description": "by REST"})
        assert stored.status_code == 201, stored.text
        traceparent = new_traceparent()
        run = f"/chains/{stored.json()['id']}/run"
        started = client.post(run, json={"refresh": True}, headers={"traceparent": traceparent})
        assert started.status_code == 202, started.text
        assert started.headers["x-trace-id"] == trace_id(traceparent)
        answer = started.json()

        def has_ended() -> bool:
            return client.get(f"/jobs/{answer['id']}").json()["state"] not in ("pending", "running")

        wait_until(has_ended, 240, "the run")
        assert client.delete(f"/chains/{stored.json()['id']}").status_code == 200
    require_one_trace(stack, str(answer["run_id"]), trace_id(traceparent), "rest")
    return str(answer["run_id"])


def require_one_trace(stack: Stack, run_id: str, trace: str, surface: str) -> None:
    """The correlation id of a request is that of the audit log, of the run's tags and of its trainer's events."""
    assert [tag for tag in stack.request_prefect(f"flow_runs/{run_id}")["tags"] if tag.startswith("trace:")] == [
        f"trace:{trace}"
    ]
    lines = [line for line in AuditLog(stack.settings.home / "audit").lines() if line["trace"] == trace]
    started = [line for line in lines if line["operation"] == "chains run" and line["phase"] == "ended"]
    assert [(line["surface"], line["outcome"], line["targets"]["run_id"]) for line in started] == [
        (surface, "done", run_id)
    ]
    (log,) = find_training_logs(stack.settings.runs / run_id)
    run_events = [event for event in read_events(log.folder / "events.jsonl") if event.get("run") == run_id]
    assert {event["trace"] for event in run_events} == {trace}


def run_by_mcp(stack: Stack, body: dict[str, Any]) -> str:
    traceparent = new_traceparent()

    async def call() -> str:
        headers = {"authorization": f"Bearer {token(stack)}", "traceparent": traceparent}
        async with (
            httpx.AsyncClient(headers=headers, timeout=300) as http,
            Client(streamable_http_client(f"{address(stack)}/mcp", http_client=http)) as client,
        ):
            stored = await client.call_tool("chains_create", {"spec": {**body, "description": "by MCP"}})
            arguments = {"chain": stored.structured_content["id"], "refresh": True}
            started = await client.call_tool("chains_run", arguments)
            assert not started.is_error, started.content
            state = "pending"
            while state in ("pending", "running"):
                await anyio.sleep(0.5)
                job = await client.call_tool("jobs_show", {"job": started.structured_content["id"]})
                state = job.structured_content["state"]
            return str(started.structured_content["run_id"])

    run_id = anyio.run(call)
    require_one_trace(stack, run_id, trace_id(traceparent), "mcp")
    return run_id


def run_by_prefect(stack: Stack, body: dict[str, Any]) -> str:
    command = ["deployment", "run", "chain/adhoc", "--params", json.dumps({"spec": body}), "--tag", REFRESH_TAG]
    environment = {**stack.environment, **stack.json("env")["variables"]}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *command, "--watch"], env=environment, cwd=stack.work,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (newest,) = httpx.post(
        f"{stack.api_url()}/flow_runs/filter", headers=stack.credentials(),
        json={"sort": "EXPECTED_START_TIME_DESC", "limit": 1},
    ).json()  # fmt: skip
    return str(newest["id"])


def test_a_chain_has_one_digest_and_one_result_on_every_surface(stack: Stack, body: dict[str, Any]) -> None:
    ways = (run_by_command, run_by_python, run_by_rest, run_by_mcp, run_by_prefect)
    runs = {way.__name__: way(stack, body) for way in ways}
    assert len(set(runs.values())) == len(ways)
    results = {name: read_result(stack.settings.runs / run_id) for name, run_id in runs.items()}
    planned = stack.json("check", "chain.json")["files"][0]["digest"]
    assert {name: result and result.digest for name, result in results.items()} == dict.fromkeys(runs, planned)
    weights = {name: stack.weights(run_id) for name, run_id in runs.items()}
    assert len(set(weights.values())) == 1, weights
