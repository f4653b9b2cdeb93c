"""A chain and a night on a Prefect server with a real PostgreSQL: the same results as on SQLite.

Two homes attach to one server, each with a worker for a queue of its own; the server is killed and comes back.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flows.real_stack import Stack, standing, wait_until
from tests.postgresql import MISSING, PASSWORD, PostgresServer, running_postgresql
from trainyard.app.run_records import read_result
from trainyard.app.services import running

pytestmark = [
    pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.skipif(bool(MISSING), reason=MISSING),
]  # fmt: skip
VARIABLE = "YARD_DATABASE"
QUEUES = ("cpu-small", "cpu-large")
CHAIN = ("run", "rag-tuning", "-p", "evaluate=false", "-p", "deploy=false", "--watch")


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
    """Run a training and a night; return the digest of every artifact and adapter."""
    digests = {}
    run_id = stack.start_job(max_steps=6)
    stack.finish(run_id)
    result = read_result(stack.settings.runs / run_id)
    assert result is not None
    for node in result.nodes:
        digests |= {f"{node.id}.{port}": reference.sha256 for port, reference in node.outputs.items()}
    return digests


def test_a_chain_has_the_artifacts_that_it_has_on_sqlite(
    first: Stack, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, postgresql: PostgresServer
) -> None:
    on_postgresql = run_everything(first)
    assert not (first.settings.prefect_home / "prefect.db").exists()
    assert postgresql.run_sql("select 1 / count(*) from flow_run", "prefect") == 0, "the run is in PostgreSQL"
    with stack_on(tmp_path_factory.mktemp("sqlite"), tiny_model) as other:
        on_sqlite = run_everything(other)
        assert (other.settings.prefect_home / "prefect.db").exists()
    assert len(on_postgresql) >= 2
    assert on_postgresql == on_sqlite


def test_the_password_is_in_no_file_of_the_home_and_in_no_output(first: Stack) -> None:
    outputs = [first.command(*words) for words in (("doctor",), ("settings",), ("env",), ("up",))]
    assert not any(PASSWORD in done.stdout + done.stderr for done in outputs)
    assert "prefect on 127.0.0.1" in outputs[0].stdout
    for path in first.settings.home.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


def test_a_server_that_is_killed_in_a_training_comes_back_to_its_database(first: Stack) -> None:
    run_id = first.start_job(max_steps=200)
    first.wait_for_step(run_id, 20)
    server = running(first.settings, "server")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: (new := running(first.settings, "server")) is not None and new.pid != server.pid, 60)
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
