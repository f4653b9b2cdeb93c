"""Kills of the API, of the Prefect server and of a session's process in the middle of a run: the others stay up.

Clients attach again: a stream continues after its last event, a request that was sent twice is carried out once, a
session continues from its newest checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import Stack, kill_tree, wait_until
from trainyard.app.services import running
from trainyard.compute.services import is_healthy
from trainyard.stores.auth_string import read_auth

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack faults")]

STEPS = 600
BACK_S = 90.0
"""Within which the watchdog has seen a death, and the service answers again."""


class Client:
    """Requests to the API of a stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.headers = {"authorization": f"Bearer {read_auth(stack.settings)}"}

    @property
    def url(self) -> str:
        api = running(self.stack.settings, "api")
        assert api is not None
        return api.url

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        return httpx.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=60, **options)

    def create(self, key: str, **hyperparameters: Any) -> dict[str, Any]:
        body = {
            "name": "faulty",
            "dataset": {"path": "data.jsonl"},
            "hyperparameters": {"precision": "fp32", "save_steps": 50, "gradient_accumulation": 8, **hyperparameters},
        }
        answer = self.ask("POST", "/jobs", json=body, headers={"idempotency-key": key})
        assert answer.status_code == 202, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def events(self, job: str, last: str = "") -> Iterator[tuple[str, str, Any]]:
        """(id, event, data) of a job's metrics."""
        headers = {**self.headers, "accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        address = f"{self.url}/api/v1/jobs/{job}/metrics"
        with httpx.stream("GET", address, headers=headers, timeout=60) as answer:
            assert answer.status_code == 200
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(":")
                if not line and "event" in fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                    fields = {}
                elif name:
                    fields[name] = value.removeprefix(" ")


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack)


def list_steps(data: Any) -> list[int]:
    return [point["step"] for point in data.get("points", [])]


def read_until_it_breaks(client: Client, job: str, pid: int) -> tuple[str, list[int]]:
    """Kill the API after some steps; return the last id and the steps that the client has."""
    seen: list[int] = []
    last_id = ""
    try:
        for last, event, data in client.events(job):
            last_id, seen = last, seen + list_steps(data)
            if event == "points" and len(seen) > 10:
                kill_tree(pid)
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return last_id, seen
    raise AssertionError("the stream did not break")


def api_is_back(stack: Stack, before: int) -> bool:
    api = running(stack.settings, "api")
    return api is not None and api.pid != before and is_healthy(api.url)


def test_the_api_is_killed_and_its_clients_miss_nothing(stack: Stack, client: Client) -> None:
    job = client.create("one", max_steps=STEPS)
    stack.wait_for_step(job["run_id"], 3)
    api = running(stack.settings, "api")
    assert api is not None
    last, seen = read_until_it_breaks(client, job["id"], api.pid)
    wait_until(lambda: api_is_back(stack, api.pid), BACK_S, "the API's return")
    assert client.create("one", max_steps=STEPS)["run_id"] == job["run_id"]  # sent again: the same job
    for _, event, data in client.events(job["id"], last):
        seen += list_steps(data)
        if event == "end":
            assert data["state"] == "completed"
    assert seen[-STEPS // 2 :] == sorted(set(seen[-STEPS // 2 :]))
    assert max(seen) == STEPS
    detail = client.ask("GET", f"/jobs/{job['id']}").json()
    assert (detail["state"], detail["run_id"]) == ("completed", job["run_id"])


def test_prefect_is_killed_and_jobs_are_shown_meanwhile(stack: Stack, client: Client) -> None:
    job = client.create("two", max_steps=STEPS, seed=7)
    stack.wait_for_step(job["run_id"], 3)
    assert client.ask("GET", "/jobs").json()["jobs"][0]["id"] == job["id"]
    server = running(stack.settings, "server")
    assert server is not None
    kill_tree(server.pid)
    began = time.monotonic()
    answers = [client.ask("GET", f"/jobs/{job['id']}") for _ in range(10)]
    refused = client.ask("POST", f"/jobs/{job['id']}/pause", json={"wait": False})
    assert {answer.status_code for answer in answers} == {200}
    assert refused.status_code in (200, 503)  # 200 if the watchdog was quick
    assert refused.status_code == 200 or int(refused.headers["retry-after"]) > 0
    assert time.monotonic() - began < 30
    wait_until(
        lambda: (process := running(stack.settings, "server")) is not None and process.answers(), BACK_S, "the server"
    )
    wait_until(lambda: client.ask("GET", f"/jobs/{job['id']}").json()["as_of"] is None, BACK_S, "an index in step")
    if refused.status_code == 200:
        wait_until(lambda: client.ask("GET", f"/jobs/{job['id']}").json()["state"] == "paused", 60, "the pause")
        assert client.ask("POST", f"/jobs/{job['id']}/resume", json={}).status_code == 200
    stack.finish(job["run_id"])


def test_the_process_of_a_session_is_killed_and_the_session_continues(stack: Stack, client: Client) -> None:
    created = client.ask(
        "POST", "/sessions", json={"stage": "sft", "method": "lora", "hyperparameters": {"max_steps": 20}}
    )
    assert created.status_code == 202, created.text
    session = f"/sessions/{created.json()['id']}"

    def read_state() -> str:
        return str(client.ask("GET", session).json()["state"])

    wait_until(lambda: read_state() == "open", 120, "the session")
    rows = [{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}]
    forward = client.ask("POST", f"{session}/forward", json={"rows": rows})
    assert forward.status_code == 200, forward.text
    body = {"forward_id": forward.json()["forward_id"]}
    assert client.ask("POST", f"{session}/backward", json=body).status_code == 200
    stepped = client.ask("POST", f"{session}/step", json={"learning_rate": 0.01})  # a schedule's first may be 0
    assert stepped.json()["global_step"] == 1
    assert client.ask("POST", f"{session}/save", json={"name": "one"}).status_code == 200
    for child in stack.children():
        child.kill()
    wait_until(lambda: read_state() not in ("open", "pending"), 120, "the session's end")
    assert is_healthy(client.url)
    assert client.ask("POST", f"{session}/resume", json={}).status_code == 202
    wait_until(lambda: read_state() == "open", 120, "the session's return")
    assert client.ask("POST", f"{session}/load", json={"name": "one"}).status_code == 200
    assert client.ask("GET", session).json()["global_step"] == 1
    again = client.ask("POST", f"{session}/forward", json={"rows": rows})
    assert again.status_code == 200, again.text
    assert again.json()["loss"] < forward.json()["loss"]
    assert client.ask("POST", f"{session}/close", json={}).status_code == 200
