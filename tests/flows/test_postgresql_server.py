"""A chain and a night on a Prefect server with a real PostgreSQL: the same results as on SQLite.

Two homes attach to one server, each with a worker for a queue of its own; the server is killed and comes back.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from tests.postgresql import MISSING, PASSWORD, PostgresServer, running_postgresql
from trainyard.app.run_records import read_result
from trainyard.app.services import running
from trainyard.data.corpora import Corpora
from trainyard.night.training import tenant_root
from trainyard.stores.files import RealFiles

pytestmark = [
    pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.skipif(bool(MISSING), reason=MISSING),
]  # fmt: skip
VARIABLE = "YARD_DATABASE"
QUEUES = ("cpu-small", "cpu-large")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with running_postgresql() as server:
        yield server


@contextmanager
def stack_on(folder: Path, model: Path, **variables: str) -> Iterator[Stack]:
    common = {"TRAINYARD_SERVE_MODELS": "[]"}
    with standing(folder, model, lambda stack: stack.environment.update({**common, **variables})) as stack:
        yield stack


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, postgresql: PostgresServer) -> Iterator[Stack]:
    """The home with the server and a worker for one of the queues."""
    variables = {VARIABLE: postgresql.url(), "TRAINYARD_PREFECT_DATABASE": f"env:{VARIABLE}"}
    variables["TRAINYARD_WORK_QUEUES"] = json.dumps(["default", QUEUES[0]])
    variables["TRAINYARD_HOST_CLASSES"] = json.dumps({name: {} for name in QUEUES})
    with stack_on(tmp_path_factory.mktemp("first"), tiny_model, **variables) as stack:
        yield stack


def run_everything(stack: Stack) -> dict[str, str]:
    """Run a training and a night by their deployments; return the digests of what they made."""
    run_id = stack.start_job(max_steps=6)
    digests = {"weights of the job": stack.finish(run_id)}
    result = read_result(stack.settings.runs / run_id)
    assert result is not None
    digests |= {f"rows.{port}": part.sha256 for port, part in result.node("data-source").outputs.items()}
    run_night(stack)
    export = stack.work / "graph.jsonl"
    assert stack.command("graph", "export", str(export)).returncode == 0
    digests["graph of the night"] = hashlib.sha256(export.read_bytes()).hexdigest()
    (weights,) = stack.settings.adapters.rglob("v1/adapter_model.safetensors")
    return {**digests, "adapter of the night": hashlib.sha256(weights.read_bytes()).hexdigest()}


def run_night(stack: Stack) -> None:
    """Run a night that reads the sample documents, and trains an adapter on twelve commits."""
    commits = [{"diff": f"+wheel {n}\n-spoke {n}", "message": f"Add wheel {n}"} for n in range(12)]
    Corpora(tenant_root(stack.settings, "default") / "corpora", RealFiles()).add("engineering", "sft", commits)
    training = {"method": {"type": "lora", "rank": 4}}
    training |= {"hyperparameters": {"max_steps": 3, "batch_size": 2, "max_length": 128, "precision": "fp32"}}
    bucket = {"name": "engineering", "method": "sft", "threshold": 10}
    phase = {"gate": "none", "training": training}
    config = {"documents": "examples/night", "buckets": [bucket], "phase2": phase}
    deployment = stack.request_prefect("deployments/name/nightly/two-phase")["id"]
    address = f"{stack.api_url()}/deployments/{deployment}/create_flow_run"
    answer = httpx.post(address, json={"parameters": {"config": config}}, headers=stack.credentials(), timeout=60)
    run_id = answer.raise_for_status().json()["id"]
    stack.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED", seconds=240)
    assert stack.state_of(run_id)["type"] == "COMPLETED", stack.state_of(run_id)["message"]


def test_a_chain_and_a_night_make_what_they_make_on_sqlite(
    first: Stack, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, postgresql: PostgresServer
) -> None:
    on_postgresql = run_everything(first)
    assert not (first.settings.prefect_home / "prefect.db").exists()
    assert postgresql.run_sql("select 1 / count(*) from flow_run", "prefect") == 0, "the run is in PostgreSQL"
    with stack_on(tmp_path_factory.mktemp("sqlite"), tiny_model) as other:
        on_sqlite = run_everything(other)
        assert (other.settings.prefect_home / "prefect.db").exists()
    assert len(on_postgresql) >= 4
    assert on_postgresql == on_sqlite


def test_the_password_is_in_no_file_of_the_home_and_in_no_output(first: Stack) -> None:
    outputs = [first.command(*words) for words in (("doctor",), ("settings",), ("env",), ("up",))]
    assert not any(PASSWORD in done.stdout + done.stderr for done in outputs)
    assert "prefect on 127.0.0.1" in outputs[0].stdout
    for path in first.settings.home.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


def is_answering(stack: Stack) -> bool:
    """Return whether the server answers; one that starts has a process before it listens."""
    try:
        return bool(stack.request_prefect("admin/version"))
    except httpx.TransportError:
        return False


def test_a_server_that_is_killed_in_a_training_comes_back_to_its_database(first: Stack) -> None:
    run_id = first.start_job(max_steps=200)
    first.wait_for_step(run_id, 20)
    server = running(first.settings, "server")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: (new := running(first.settings, "server")) is not None and new.pid != server.pid, 60)
    wait_until(lambda: is_answering(first), 120, "an answer of the new server")
    assert first.finish(run_id)


def test_workers_of_two_homes_take_the_runs_of_their_queues(
    first: Stack, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> None:
    attached = first.json("env")["variables"]
    attached.pop("PREFECT_HOME")
    attached = {name: value for name, value in attached.items() if name.startswith("PREFECT_API")}
    queues = {"TRAINYARD_WORK_QUEUES": json.dumps([QUEUES[1]]), "TRAINYARD_HOST_CLASSES": '{"cpu-large": {}}'}
    with stack_on(tmp_path_factory.mktemp("second"), tiny_model, **attached, **queues) as second:
        assert running(second.settings, "server") is None
        runs = {}
        for queue in QUEUES:
            first.write_data(f"{queue}.jsonl", rows=40)
            steps = ("-p", f"dataset.path={queue}.jsonl", "-p", "hyperparameters.max_steps=3")
            runs[queue] = first.json("run", "training-job", *steps, "--queue", queue)["run_id"]
        for run_id in runs.values():
            first.finish(run_id)
        workers = [
            first.request_prefect(f"flow_runs/{run_id}")["labels"]["prefect.worker.name"] for run_id in runs.values()
        ]
        assert len(set(workers)) == 2
    unknown = first.command("run", "training-job", "-p", "dataset.path=data.jsonl", "--queue", "gpu-none")
    assert unknown.returncode != 0
    assert "gpu-none" in unknown.stderr
