"""Pieces of a validator and a generator on real clusters: the bytes of one process, also when workers are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.flows.conftest import FlowServer
from trainyard.app.services import service_environment

LIMIT_S = 280
ROWS = 24_000
"""Three Arrow batches."""


class Runs:
    """Runs of one chain with different workers, each in a process and a home of its own."""

    def __init__(self, folder: Path, server: FlowServer, model: Path) -> None:
        self.folder, self.model = folder, model
        settings = server.start(folder / "server")
        self.environment = {
            **service_environment(settings, server.url), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "PREFECT_LOGGING_LEVEL": "CRITICAL", "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip

    def run(self, name: str, fan_out: Mapping[str, Any] | None, kills: int = 0, **more: str) -> dict[str, Any]:
        home = self.folder / name
        environment = {
            **self.environment, "TRAINYARD_HOME": str(home), "TRAINYARD_WORKING_FOLDER": str(self.folder),
            "TRAINYARD_DEFAULT_BASE_MODEL": str(self.model), "TMPDIR": str(self.folder / "tmp"), **more,
        }  # fmt: skip
        if fan_out is not None:
            environment["TRAINYARD_FAN_OUT"] = json.dumps(fan_out)
        (self.folder / "tmp").mkdir(exist_ok=True)
        nodes = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "validator"}]
        done = subprocess.run(
            [sys.executable, "-m", "tests.flows.fan_out_runs", str(kills), json.dumps({"name": "t", "nodes": nodes})],
            cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        print(done.stderr[-3000:])
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(flow_server: FlowServer, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("fan")
    texts = (
        (f"What is {n % 17_000} times 2, plus {n % 31}?", f"It is {2 * n}, as {n} is doubled.") for n in range(ROWS)
    )
    rows = ({"instruction": question, "output": answer} for question, answer in texts)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Runs(folder, flow_server, tiny_model)


@pytest.fixture(scope="module")
def alone(runs: Runs) -> dict[str, Any]:
    result = runs.run("alone", None)
    assert result["state"] == "Completed", result
    return result


@pytest.mark.parametrize("engine", ["dask", "ray", "processes"])
def test_a_killed_worker_loses_and_doubles_no_row(runs: Runs, alone: dict[str, Any], engine: str) -> None:
    result = runs.run(engine, {"engine": engine, "workers": 2}, kills=1)
    print({**result, "outputs": 0})
    assert result["state"] == "Completed"
    assert result["killed"] == 1
    assert result["outputs"] == alone["outputs"]
    assert result["left"] == []
    assert result["ports"] == []
