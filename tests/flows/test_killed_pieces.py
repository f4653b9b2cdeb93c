"""Pieces of a validator and a generator on real clusters: the bytes of one process, also when workers are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.dask_cluster import running_cluster
from tests.flows.conftest import FlowServer
from tests.flows.fan_out_runs import has_piece_open
from trainyard.app.services import service_environment
from trainyard.callbacks import ignore

LIMIT_S = 280
ROWS = 12_000
"""Two Arrow batches."""


class Runs:
    """Runs of one chain with different workers, each in a process and a home of its own."""

    def __init__(self, folder: Path, server: FlowServer, model: Path) -> None:
        self.folder, self.model = folder, model
        settings = server.start(folder / "server")
        self.environment = {
            **service_environment(settings, server.url), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "PREFECT_LOGGING_LEVEL": "CRITICAL", "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip

    def run(
        self, name: str, fan_out: Mapping[str, Any] | None, kills: int = 0, meanwhile: Callable[[], None] = ignore
    ) -> dict[str, Any]:
        home = self.folder / name
        environment = {
            **self.environment, "TRAINYARD_HOME": str(home), "TRAINYARD_WORKING_FOLDER": str(self.folder),
            "TRAINYARD_DEFAULT_BASE_MODEL": str(self.model), "TMPDIR": str(self.folder / "tmp"),
        }  # fmt: skip
        if fan_out is not None:
            environment["TRAINYARD_FAN_OUT"] = json.dumps(fan_out)
        (self.folder / "tmp").mkdir(exist_ok=True)
        nodes = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "validator"}]
        argv = [sys.executable, "-m", "tests.flows.fan_out_runs", str(kills), json.dumps({"name": "t", "nodes": nodes})]
        process = subprocess.Popen(
            argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            meanwhile()
            output, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, output[-2000:] + errors[-4000:]
        return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(flow_server: FlowServer, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("fan")
    texts = (
        (f"What is {n % 11_000} times 2, plus {n % 31}?", f"It is {2 * n}, as {n} is doubled.") for n in range(ROWS)
    )
    rows = ({"instruction": question, "output": answer} for question, answer in texts)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Runs(folder, flow_server, tiny_model)


@pytest.fixture(scope="module")
def alone(runs: Runs) -> dict[str, Any]:
    result = runs.run("alone", None)
    assert result["state"] == "Completed", result
    return result


@pytest.mark.parametrize(
    "engine", ["dask", *(pytest.param(engine, marks=pytest.mark.slow) for engine in ("ray", "processes"))]
)
def test_a_killed_worker_loses_and_doubles_no_row(runs: Runs, alone: dict[str, Any], engine: str) -> None:
    result = runs.run(engine, {"engine": engine, "workers": 2}, kills=1)
    assert (result["state"], result["killed"]) == ("Completed", 1), result
    assert result["outputs"] == alone["outputs"]
    assert result["texts"][0] == f"in 8 pieces or fewer on {engine} with 2 workers"
    assert (result["left"], result["ports"]) == ([], [])


@pytest.mark.slow
def test_a_piece_that_ends_each_worker_is_named(runs: Runs) -> None:
    result = runs.run("poison", {"engine": "processes", "workers": 1}, kills=99)
    assert result["state"] == "Failed"
    assert "validator: E-CRASH: Piece 0 of validator (batches 0 to 1) did not end on 3 clusters" in result["message"]
    assert "BrokenProcessPool" in result["message"]
    assert result["left"] == []
    assert not list((runs.folder / "poison").rglob(".pieces"))


@pytest.mark.slow
def test_a_running_cluster_does_the_pieces_until_its_scheduler_is_gone(
    runs: Runs, alone: dict[str, Any], tmp_path: Path
) -> None:
    """Its workers have Prefect's credential in their environment. Nothing half-written is left at the end."""
    with running_cluster(tmp_path / "cluster") as cluster:
        worker = psutil.Process(cluster.start_worker(runs.environment).pid)
        fan_out = {"engine": "dask", "address": cluster.address}
        assert runs.run("remote", fan_out)["outputs"] == alone["outputs"]

        def end_scheduler() -> None:
            deadline = time.monotonic() + LIMIT_S
            while not has_piece_open(worker):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            cluster.scheduler.kill()

        result = runs.run("gone", fan_out, meanwhile=end_scheduler)
    assert result["state"] == "Failed"
    assert "validator: E-SERVER-UNREACHABLE: The pieces have no workers: dask at tcp://" in result["message"]
    assert not list((runs.folder / "gone").rglob(".pieces"))
