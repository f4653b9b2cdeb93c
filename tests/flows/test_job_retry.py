"""`jobs retry` on a real server: the same job again, from what is finished, from a checkpoint, or all over again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.real_stack import Stack, standing
from trainyard.api.stack import running
from trainyard.stores.auth_string import read_auth

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack faults")]

SAVE_STEPS = 10


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stack]:
    with standing(tmp_path_factory.mktemp("stack"), tiny_model) as stack:
        yield stack


def retry(stack: Stack, job: str, **given: Any) -> str:
    """Ask for it over REST; returns the run of the new job."""
    api = running(stack.settings, "api")
    assert api is not None
    headers = {"authorization": f"Bearer {read_auth(stack.settings)}"}
    answer = httpx.post(f"{api.url}/api/v1/jobs/{job}/retry", json=given, headers=headers, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def states(stack: Stack, run_id: str) -> dict[str, str]:
    shown = stack.json("jobs", "show", run_id)
    return {node["id"]: node["state"] for node in shown["nodes"]}


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
    assert stack.asked(f"flow_runs/{again}")["parameters"] == stack.asked(f"flow_runs/{first}")["parameters"]


def test_a_canceled_job_continues_from_the_checkpoint_that_it_left(stack: Stack) -> None:
    whole = stack.start_job(max_steps=120, save_steps=SAVE_STEPS, gradient_accumulation=1)
    weights = stack.finish(whole)
    given = {"max_steps": 120, "save_steps": SAVE_STEPS, "gradient_accumulation": 1, "seed": 7}
    canceled = stack.start_job(**given)
    stack.wait_for_step(canceled, 2 * SAVE_STEPS)
    assert stack.json("jobs", "cancel", canceled)["state"] == "canceled"
    assert stack.step(canceled) < 120
    again = retry(stack, canceled)
    assert stack.finish(again) != weights, "another seed"
    (begun,) = stack.events(again, "job")
    events = [json.loads(line) for line in (Path(begun["folder"]) / "events.jsonl").read_text().splitlines()]
    restarts = [one["restarted_from"] for one in events if one["event"] == "begin"]
    assert restarts[0] is None
    assert restarts[-1]["step"] >= 2 * SAVE_STEPS


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
    parameters = [stack.asked(f"flow_runs/{run_id}")["parameters"]["spec"] for run_id in (first, again)]
    assert parameters[0] == parameters[1]
    assert stack.json("jobs", "compare", first, again)["settings"] == []
