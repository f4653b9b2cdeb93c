"""Jobs, sessions and streams of one tenant do not exist for another one: a real server, tokens of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.app.services import running
from trainyard.operations.table import OPERATIONS, find_route

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack faults")]

ROWS = '{"prompt": "a?", "completion": "b"}\n' * 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    with standing(tmp_path_factory.mktemp("stack"), tiny_model) as stack:
        for tenant in ("blue", "red"):
            data = stack.settings.home / "tenants" / tenant
            data.mkdir(parents=True)
            (data / "own.jsonl").write_text(ROWS)
        yield stack


def make_client(stack: Stack, tenant: str, name: str = "") -> httpx.Client:
    token = stack.json("tokens", "create", "--name", name or tenant, "--scope", "run", "--tenant", tenant)["token"]
    api = running(stack.settings, "api")
    assert api is not None
    return httpx.Client(base_url=f"{api.url}/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=60)


def list_paths(kind: str, identifier: str) -> list[tuple[str, str]]:
    """Every route that names a job, or a session."""
    routes = [find_route(name) for name in OPERATIONS]
    values = {kind: identifier, "op_seq": "1", "name": "forward-1-logits", "node": "trainer"}
    return [(method, path.removeprefix("/api/v1").format(**values)) for method, path in routes if f"{{{kind}}}" in path]


def choose_body(path: str) -> dict[str, Any]:
    """What a route of a session needs, so that it is refused for its session alone."""
    needed: dict[str, dict[str, Any]] = {
        "backward": {"forward_id": "x"}, "save": {"name": "x"}, "load": {"name": "x"}, "generate": {"prompts": ["a"]},
        "logprobs": {"rows": ["a"]}, "forward": {"rows": [{"text": "a"}]},
    }  # fmt: skip
    return needed.get(path.rpartition("/")[2], {})


def test_what_one_tenant_started_does_not_exist_for_another(stack: Stack) -> None:
    with make_client(stack, "blue") as blue, make_client(stack, "red") as red:
        job = blue.post("/jobs", json={"dataset": {"path": "own.jsonl"}, "hyperparameters": {"max_steps": 2}})
        assert job.status_code == 202, job.text
        session = blue.post("/sessions", json={"stage": "sft", "method": "lora"})
        assert session.status_code == 202, session.text
        ids = {"job": job.json()["id"], "session": session.json()["id"]}
        wait_until(lambda: blue.get(f"/jobs/{ids['job']}").status_code == 200, 60, "the job in the index")
        for kind, identifier in ids.items():
            for method, path in list_paths(kind, identifier):
                answer = red.request(method, path, **({} if method == "GET" else {"json": choose_body(path)}))
                assert (answer.status_code, identifier in answer.text) == (404, True), (method, path, answer.text)
                assert "blue" not in answer.text
        for stream in ("", "/logs", "/metrics"):
            answer = red.get(f"/jobs/{ids['job']}{stream}", headers={"accept": "text/event-stream"})
            assert answer.status_code == 404, stream
        assert red.get("/jobs").json()["jobs"] == []
        assert red.get("/sessions").json()["sessions"] == []
        assert [job["id"] for job in blue.get("/jobs").json()["jobs"] if job["id"] == ids["job"]] == [ids["job"]]
        assert blue.post(f"/sessions/{ids['session']}/close", json={}).status_code in (200, 409)


def job_of_token(stack: Stack, tenant: str) -> tuple[httpx.Client, dict[str, Any]]:
    """A job that a token of the same name, of another tenant each time, starts twice with the same key."""
    client = make_client(stack, tenant, "again")
    body = {"dataset": {"path": "own.jsonl"}, "hyperparameters": {"max_steps": 6, "seed": 11}, "name": "equal"}
    answers = [client.post("/jobs", json=body, headers={"idempotency-key": "the-same-key"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202], [answer.text for answer in answers]
    assert answers[0].json()["run_id"] == answers[1].json()["run_id"]
    stack.json("tokens", "revoke", "again")
    return client, answers[0].json()


def test_equal_jobs_of_tokens_of_one_name_share_nothing(stack: Stack) -> None:
    """The key of the revoked token starts nothing for its successor and answers nothing; folders, logs are apart."""
    jobs = []
    for tenant in ("blue", "red"):
        client, job = job_of_token(stack, tenant)
        client.close()
        stack.finish(job["run_id"])
        jobs.append(job)
    first, second = jobs
    assert first["run_id"] != second["run_id"]
    folders = [Path(stack.events(job["run_id"], "job")[-1]["folder"]) for job in jobs]
    assert folders[0] != folders[1]
    with make_client(stack, "red", "other") as red:
        assert red.get(f"/jobs/{first['id']}").status_code == 404
        wait_until(lambda: red.get(f"/jobs/{second['id']}").status_code == 200, 60, "the job in the index")
        log = red.get(f"/jobs/{second['id']}/logs").text
        metrics = red.get(f"/jobs/{second['id']}/metrics").text
        assert not [text for text in (log, metrics) if first["run_id"] in text or str(folders[0]) in text]
    lines = (folders[1] / "events.jsonl").read_text()
    assert lines.count('"event":"started"') == 1, "it was trained anew, from its first step"
