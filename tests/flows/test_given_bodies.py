"""Bodies of jobs and chains as other tools write them, carried out as they stand.

Only two things are put in their place, outside the bodies: the folder `/data`, and small models under the names that
the bodies ask for, in a cache of the model hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from flows.training_job import training_job
from tests.conftest import REPOSITORY
from tests.flows.chain_runs import read_record
from trainyard.app.run_records import RunResult, read_result
from trainyard.backends.environments import ENVIRONMENTS
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.job import JobSpec
from trainyard.spec.states import JobState
from trainyard.testing.scripted_server import ScriptedServer

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.timeout(900)]

BODIES = REPOSITORY / "tests" / "resources" / "bodies"
CACHED = REPOSITORY / ".trainyard" / "envs"
CARRY_OUT = """
import asyncio, json, sys
from flows.chain import chain
from flows.training_job import training_job
from trainyard.spec.job import JobSpec
from trainyard.spec.load.files import read_chain
body = json.loads(sys.argv[1])
if "nodes" in body:
    state = asyncio.run(chain(read_chain(body)[0], return_state=True))
else:
    state = asyncio.run(training_job(JobSpec.model_validate(body), return_state=True))
print(json.dumps({"run": str(state.state_details.flow_run_id), "message": state.message}))
"""
"""A process of its own: where the cache of the hub is, is read when the hub's library is imported."""


def read_body(name: str, data: Path) -> dict[str, Any]:
    text = (BODIES / f"{name}.json").read_text(encoding="utf-8")
    job_body: dict[str, Any] = json.loads(text.replace('"/data/', f'"{data}/'))
    return job_body


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Stands for `/data`."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def carry_out(tmp_path: Path, data: Path, tiny_model: Path, home: Path) -> Callable[..., RunResult]:
    """Carries a body out and returns what its run left."""

    def run(name: str, **variables: str) -> RunResult:
        job_body = read_body(name, data)
        if "base_model" in job_body:
            snapshot = tmp_path / "hub" / f"models--{job_body['base_model'].replace('/', '--')}" / "snapshots" / "a1"
            snapshot.parent.mkdir(parents=True)
            snapshot.symlink_to(tiny_model)
            (snapshot.parents[1] / "refs").mkdir()
            (snapshot.parents[1] / "refs" / "main").write_text("a1")
        named = {
            environment.value: str(CACHED / environment.value)
            for environment in ENVIRONMENTS
            if (CACHED / environment.value).exists()
        }
        environment = {
            **os.environ,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "PREFECT_API_AUTH_STRING": str(PREFECT_API_AUTH_STRING.value()),
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "TRAINYARD_DATA_ROOTS": json.dumps([str(data)]),
            "TRAINYARD_BACKEND_ENVS": json.dumps(named),
            "TRAINYARD_DEFAULT_BASE_MODEL": str(tiny_model),
            **variables,
        }
        ran = subprocess.run(
            [sys.executable, "-c", CARRY_OUT, json.dumps(job_body)], env=environment, cwd=REPOSITORY, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-2000:]
        answer = json.loads(ran.stdout.splitlines()[-1])
        result = read_result(home / "runs" / answer["run"])
        assert result is not None, answer["message"]
        assert result.state is JobState.COMPLETED, answer["message"]
        return result

    return run


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def needs(name: str) -> None:
    if not (CACHED / name / "bin" / "python").exists():
        pytest.skip(f"no environment for {name}: run `trainyard backends install {name}`")


@pytest.mark.backends
def test_the_lora_job_on_mlx(carry_out: Callable[..., RunResult], data: Path) -> None:
    needs("mlx")
    rows = [{"instruction": f"Name node {n}.", "input": "", "output": f"Node {n} reads pairs."} for n in range(16)]
    write_rows(data / "train.jsonl", rows)
    record = read_record(carry_out("lora-job-mlx"))
    assert (record["stage"], record["method"], record["backend"]) == ("sft", "lora", "mlx")
    assert record["steps"] == 16 // 4 * 3
    assert (record["lora"]["rank"], record["lora"]["alpha"]) == (16, 32)
    assert record["final_loss"] < record["first_loss"]


@pytest.mark.slow
def test_the_dpo_job_on_trl(carry_out: Callable[..., RunResult], data: Path) -> None:
    def make_message(role: str, text: str) -> dict[str, str]:
        return {"role": role, "content": text}

    rows = [
        {
            "input": {"messages": [make_message("user", f"What is node {n}?")]},
            "preferred_output": [make_message("assistant", f"Node {n} reads pairs.")],
            "non_preferred_output": [make_message("assistant", f"No idea, {n} or so.")],
        }
        for n in range(8)
    ]
    write_rows(data / "preferences.jsonl", rows)
    record = read_record(carry_out("dpo-job-trl"))
    assert (record["stage"], record["method"], record["backend"]) == ("dpo", "lora", "trl")
    assert record["steps"] == 8 // 2
    assert record["hyperparameters"]["learning_rate"] == 5e-5


@pytest.fixture
def llama() -> Iterator[ScriptedServer]:
    """Answers as the model that the chain asks for."""
    with ScriptedServer() as server:
        yield server


@pytest.mark.backends
def test_the_chain_of_three_nodes(carry_out: Callable[..., RunResult], data: Path, llama: ScriptedServer) -> None:
    needs("unsloth")
    (data / "docs").mkdir()
    for number in range(4):
        text = f"# Node {number}\n\nNode {number} reads documents and writes {number + 2} pairs for each of them.\n"
        (data / "docs" / f"node-{number}.md").write_text(text, encoding="utf-8")
    endpoints = json.dumps({"llama3.2": {"base_url": llama.url}})
    result = carry_out("chain-three-nodes", TRAINYARD_ENDPOINTS=endpoints)
    assert [node.type for node in result.nodes] == ["data_source", "ai_generator", "trainer"]
    rows = result.node("ai-generator").outputs[Port.SFT].rows
    assert rows is not None
    assert rows > 0
    record = read_record(result)
    assert (record["backend"], record["method"]) == ("unsloth", "lora")
    assert record["final_loss"] < record["first_loss"]


async def test_a_job_at_a_data_worker_is_refused(data: Path) -> None:
    settings.cache_clear()
    state = await training_job(JobSpec.model_validate(read_body("job-data-worker", data)), return_state=True)
    assert state.is_failed()
    assert "R-DATA-WORKER" in str(state.message)
    assert "http://dataworker1:8892" in str(state.message)
