"""`jobs retry` on a real server: the same job again, from what is finished, from a checkpoint, or all over again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import SAVE_STEPS, STEPS, Stack
from trainyard.app.services import running
from trainyard.stores.auth_string import read_auth

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack faults")]


def post(stack: Stack, job: str, verb: str, **body: Any) -> dict[str, Any]:
    """Ask for it over REST: a command takes seconds more."""
    api = running(stack.settings, "api")
    assert api is not None
    headers = {"authorization": f"Bearer {read_auth(stack.settings)}"}
    answer = httpx.post(f"{api.url}/api/v1/jobs/{job}/{verb}", json=body, headers=headers, timeout=120)
    assert answer.is_success, answer.text
    result: dict[str, Any] = answer.json()
    return result


def retry(stack: Stack, job: str, **body: Any) -> str:
    """The run of the new job."""
    return str(post(stack, job, "retry", **body)["run_id"])


def states(stack: Stack, run_id: str) -> dict[str, str]:
    detail = stack.json("jobs", "show", run_id)
    return {node["id"]: node["state"] for node in detail["nodes"]}


def test_a_finished_job_is_reused_or_trained_again_to_the_same_bits(stack: Stack) -> None:
    first = stack.start_job(max_steps=6, save_steps=6, gradient_accumulation=1)
    weights = stack.finish(first)
    reused = retry(stack, first)
    assert reused != first
    assert stack.finish(reused) == weights
    assert set(states(stack, reused).values()) == {"reused"}
    again = retry(stack, first, refresh=True)
    assert stack.finish(again) == weights
    assert set(states(stack, again).values()) == {"completed"}
    assert (
        stack.request_prefect(f"flow_runs/{again}")["parameters"]
        == stack.request_prefect(f"flow_runs/{first}")["parameters"]
    )


def test_a_canceled_job_continues_from_the_checkpoint_that_it_left(stack: Stack) -> None:
    canceled = stack.start_job(seed=7)
    stack.wait_for_step(canceled, SAVE_STEPS + 1)
    assert post(stack, canceled, "cancel")["state"] == "canceled"
    assert stack.step(canceled) < STEPS
    again = retry(stack, canceled)
    stack.finish(again)
    assert stack.step(again) == STEPS
    folder = Path(stack.events(again, "job")[-1]["folder"])
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    restarts = [event["restarted_from"] for event in events if event["event"] == "begin"]
    assert restarts[0] is None
    assert restarts[-1]["step"] >= SAVE_STEPS


def test_a_chain_is_started_again_as_it_was_given(stack: Stack) -> None:
    hyper = {"max_steps": 4, "gradient_accumulation": 1}
    nodes = [
        {"type": "data_source", "config": {"path": "data.jsonl"}},
        {"type": "trainer", "config": {"hyperparameters": hyper}},
    ]
    (stack.work / "own.yaml").write_text(json.dumps({"name": "own", "nodes": nodes}))
    first = str(stack.json("run", "own.yaml")["run_id"])
    weights = stack.finish(first)
    again = str(stack.json("jobs", "retry", first, "--refresh")["run_id"])
    assert stack.finish(again) == weights
    parameters = [stack.request_prefect(f"flow_runs/{run_id}")["parameters"]["spec"] for run_id in (first, again)]
    assert parameters[0] == parameters[1]
    assert stack.json("jobs", "compare", first, again)["settings"] == []
