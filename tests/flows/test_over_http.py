"""What a client does over HTTP alone with a real server and worker: chains, jobs as documented, sessions left open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack, standing, wait_until
from trainyard.app.services import running
from trainyard.stores.auth_string import read_auth

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack faults")]

BODIES = REPOSITORY / "tests" / "resources" / "bodies"
ENDED = ("completed", "failed", "canceled")


def make_message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    """A stack with the files and models that the documented bodies name: a folder in the place of `/data`, and a small
    model under the names of theirs in a cache of the hub.
    """
    root = tmp_path_factory.mktemp("stack")
    with standing(root, tiny_model, partial(write_documented, root, tiny_model)) as stack:
        yield stack


def write_documented(root: Path, model: Path, stack: Stack) -> None:
    rows = [{"instruction": f"Name node {n}.", "input": "", "output": f"Node {n} reads pairs."} for n in range(16)]
    pairs = [
        {
            "input": {"messages": [make_message("user", f"What is node {n}?")]},
            "preferred_output": [make_message("assistant", f"Node {n} reads pairs.")],
            "non_preferred_output": [make_message("assistant", f"No idea, {n} or so.")],
        }
        for n in range(8)
    ]
    for name, examples in (("train", rows), ("preferences", pairs)):
        (stack.work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples))
    for name in ("mlx-community/Llama-3.2-3B-Instruct-4bit", "meta-llama/Llama-3.2-3B"):
        snapshot = root / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "a1"
        snapshot.parent.mkdir(parents=True)
        snapshot.symlink_to(model)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("a1")
    stack.environment |= {
        "TRAINYARD_DATA_ROOTS": json.dumps([str(stack.work)]), "HF_HUB_CACHE": str(root / "hub"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    api = running(stack.settings, "api")
    assert api is not None
    headers = {"authorization": f"Bearer {str(read_auth(stack.settings)).partition(':')[2]}"}
    with httpx.Client(base_url=f"{api.url}/api/v1", headers=headers, timeout=60) as client:
        yield client


def read_documented_body(stack: Stack, name: str) -> dict[str, Any]:
    text = (BODIES / f"{name}.json").read_text(encoding="utf-8")
    job_body: dict[str, Any] = json.loads(text.replace('"/data/', f'"{stack.work}/'))
    return job_body


def read_state(client: httpx.Client, job: str) -> str:
    return str(client.get(f"/jobs/{job}").json().get("state"))


def test_the_service_says_that_a_worker_runs(client: httpx.Client) -> None:
    address = str(client.base_url).removesuffix("/api/v1/") + "/health"
    wait_until(lambda: httpx.get(address).json()["worker"] == "running", 30, "the worker")


def test_a_chain_with_a_run_is_not_deleted(stack: Stack, client: httpx.Client) -> None:
    hyperparameters = {"max_steps": 100_000, "save_steps": 50, "precision": "fp32"}
    source = {"type": "data_source", "config": {"path": str(stack.work / "data.jsonl")}}
    chain = {"name": "long", "nodes": [source, {"type": "trainer", "config": {"hyperparameters": hyperparameters}}]}
    stored = client.post("/chains", json=chain)
    assert stored.status_code == 201, stored.text
    path = f"/chains/{stored.json()['id']}"
    started = client.post(f"{path}/run", json={})
    assert started.status_code == 202, started.text
    job = started.json()["id"]
    wait_until(lambda: read_state(client, job) == "running", 120, "the run")
    wait_until(
        lambda: (client.get(path).json()["last_run"] or {}).get("state") == "running", 30, "the chain's last run"
    )
    assert client.get(path).json()["last_run"] == {"id": job, "state": "running", "revision": 1}
    refused = client.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "E-CONFLICT")
    assert job in refused.json()["detail"]
    assert "trainyard jobs cancel" in refused.json()["do"]
    assert read_state(client, job) == "running"
    assert client.post(f"/jobs/{job}/cancel", json={}).status_code == 200
    wait_until(lambda: read_state(client, job) == "canceled", 90, "the end")
    assert client.delete(path).status_code == 200
    assert client.get(path).status_code == 404


def test_a_session_that_is_left_open_ends_and_is_resumed(stack: Stack, client: httpx.Client) -> None:
    body = {"idle_s": 2, "hyperparameters": {"precision": "fp32"}}
    key = {"idempotency-key": "a-session"}
    created = client.post("/sessions", json=body, headers=key)
    assert created.status_code == 202, created.text
    session = created.json()["id"]
    assert client.post("/sessions", json=body, headers=key).json()["id"] == session

    def show_session() -> dict[str, Any]:
        body: dict[str, Any] = client.get(f"/sessions/{session}").json()
        return body

    wait_until(lambda: show_session()["state"] == "ended", 180, "the session's end")
    assert show_session()["detail"] == "idle"
    late = client.post(f"/sessions/{session}/forward", json={"rows": [{"text": "a"}]})
    assert (late.status_code, late.json()["code"]) == (409, "E-SESSION-STATE")
    assert "sessions resume" in late.json()["do"]
    wait_until(stack.slot_is_free, 30, "the device")
    resumed = client.post(f"/sessions/{session}/resume", json={})
    assert resumed.status_code == 202, resumed.text
    assert resumed.json()["id"] == session
    wait_until(
        lambda: show_session()["state"] in ("open", "ended") and show_session()["run"] == resumed.json()["run"],
        180,
        "it",
    )
    wait_until(lambda: show_session()["state"] == "ended", 180, "its second end")


def test_the_documented_jobs_are_accepted(stack: Stack, client: httpx.Client) -> None:
    """The one for MLX waits for its trainer, which is not installed; the one for TRL is carried out."""
    waits = client.post("/jobs", json=read_documented_body(stack, "lora-job-mlx"))
    assert waits.status_code == 202, waits.text
    assert (waits.json()["state"], waits.json()["name"].startswith("finetune-llama")) == ("pending", True)
    assert "backends install mlx" in waits.json()["message"]
    runs = client.post("/jobs", json=read_documented_body(stack, "dpo-job-trl"))
    assert runs.status_code == 202, runs.text
    job = runs.json()["id"]
    wait_until(lambda: read_state(client, job) in ENDED, 300, "the job")
    detail = client.get(f"/jobs/{job}").json()
    assert (detail["state"], detail["backend"], detail["stage"]) == ("completed", "trl", "dpo"), detail["message"]
    assert read_state(client, waits.json()["id"]) == "pending"
