"""DeepSpeed on several hosts: its hostfile and argv, by its own parser, and two groups of processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs, train_as_child
from trainyard.backends.base import load_program
from trainyard.backends.deepspeed import program
from trainyard.backends.hosts import RANK_VARIABLE
from trainyard.backends.job import TrainingJob
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.services import free_port

ENVIRONMENT = REPOSITORY / ".trainyard" / "envs" / "deepspeed"
NAMES = ["127.0.0.1", "127.0.0.2"]
START_S = 480
"""Limit of a start: both hosts plan, load three libraries and train, on a machine that may be busy."""
HYPER = {"batch_size": 2, "max_steps": 6, "save_steps": 2, "epochs": None}
PARSER = """
import json, sys
from deepspeed.launcher import runner
arguments = runner.parse_args(sys.argv[1:])
pool = runner.fetch_hostfile(arguments.hostfile)
active = runner.parse_inclusion_exclusion(pool, arguments.include, arguments.exclude)
print(json.dumps([vars(arguments), pool, active]))
"""
"""DeepSpeed's own reading of a command line, as its `main` does it."""


def build_jobs(jobs: Jobs, port: int, strategy: str = "zero2", **launch: Any) -> list[TrainingJob]:
    """The same job on two hosts of one process each."""
    places = [{"nodes": 2, "node_rank": rank, "rendezvous": f"127.0.0.1:{port}"} for rank in range(2)]
    return [
        jobs(
            backend="deepspeed", launch={"strategy": strategy, "processes": 2, **place, **launch},
            hyperparameters={**HYPER},
        )
        for place in places
    ]  # fmt: skip


def as_run(job: TrainingJob, folder: Path, device: str = "cpu") -> Any:
    return SimpleNamespace(job=job, folder=folder, device=device)


def test_the_hostfile_names_each_host_with_its_processes(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RANK_VARIABLE, "1")
    launch = {"strategy": "zero2", "processes": 4, "hosts": ["gpu-a", "gpu-b"], "launcher": "deepspeed"}
    job = jobs(backend="deepspeed", launch=launch).model_copy(update={"devices": (2, 3)})
    options = program.launcher_options(as_run(job, tmp_path, "cuda"))
    assert (tmp_path / "hostfile").read_text() == "gpu-a slots=2\ngpu-b slots=2\n"
    assert options == [
        "--hostfile", str(tmp_path / "hostfile"), "--no_ssh", "--node_rank", "1", "--master_addr", "gpu-a",
        "--master_port", "29500", "--no_local_rank", "--include", "gpu-b:2,3@gpu-a",
    ]  # fmt: skip


def test_hosts_with_numbers_alone_get_names_in_the_hostfile(jobs: Jobs, tmp_path: Path) -> None:
    job = build_jobs(jobs, 29_501, launcher="deepspeed")[1]
    options = program.launcher_options(as_run(job, tmp_path))
    assert (tmp_path / "hostfile").read_text() == "host-0 slots=1\nhost-1 slots=1\n"
    assert options[3:8] == ["--node_rank", "1", "--master_addr", "127.0.0.1", "--master_port"]


# With DeepSpeed


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (ENVIRONMENT / "bin" / "python").exists():
        pytest.skip("no environment for deepspeed: run `trainyard backends install deepspeed`")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps({"deepspeed": str(ENVIRONMENT)}))


@pytest.mark.backends
def test_the_parser_of_deepspeed_reads_what_is_meant(jobs: Jobs, tmp_path: Path, environment: None) -> None:
    launch = {"strategy": "zero2", "processes": 4, "hosts": NAMES, "launcher": "deepspeed"}
    job = jobs(backend="deepspeed", launch=launch).model_copy(update={"devices": (2, 3)})
    options = program.launcher_options(as_run(job, tmp_path, "cuda"))
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=4\n127.0.0.2 slots=4\n")  # devices 2 and 3 are among four
    argv = [str(ENVIRONMENT / "bin" / "python"), "-c", PARSER, *options, "--module", *program.WORKER, "folder"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    arguments, pool, active = json.loads(done.stdout.splitlines()[-1])
    assert pool == {"127.0.0.1": 4, "127.0.0.2": 4}
    assert active["127.0.0.1"] == [2, 3]
    assert (arguments["node_rank"], arguments["master_addr"], arguments["no_ssh"]) == (0, "127.0.0.1", True)
    assert (arguments["user_script"], arguments["user_args"]) == (program.WORKER[0], [*program.WORKER[1:], "folder"])


def start(job: TrainingJob, folder: Path) -> subprocess.Popen[bytes]:
    """The supervised child of a host, as a training starts it."""
    folder.mkdir(exist_ok=True)
    (folder / SPEC_FILE).write_bytes(orjson.dumps(job.model_dump(mode="json")))
    backend = load_program(job.config.backend)
    backend.prepare(job, folder)
    with (folder / "child.log").open("ab") as log:
        variables = {**os.environ, **backend.environment(job)}
        argv = backend.command(job, folder)
        return subprocess.Popen([sys.executable, *argv[1:]], env=variables, stdout=log, stderr=log)


@contextmanager
def start_pair(pair: list[TrainingJob], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The supervised children of both hosts; none is left after the block."""
    folder.mkdir(exist_ok=True)
    hosts = [job.model_copy(update={"locks": str(folder / f"locks-{number}")}) for number, job in enumerate(pair)]
    running = [start(job, folder / str(number)) for number, job in enumerate(hosts)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.backends
@pytest.mark.timeout(3 * START_S)
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun"])
def test_two_hosts_have_the_bits_of_one_also_after_the_loss_of_a_host(
    launcher: str, jobs: Jobs, tmp_path: Path, environment: None
) -> None:
    """Each host ends with the result, and with checkpoints that have the shards of both."""
    alone = train_as_child(
        jobs(backend="deepspeed", launch={"strategy": "zero2", "processes": 2}, hyperparameters=HYPER), tmp_path / "one"
    )
    pair, folder = build_jobs(jobs, free_port(), launcher=launcher), tmp_path / "two"
    with start_pair(pair, folder) as running:
        wait_until(lambda: any((folder / "1" / "checkpoints").glob("step-*4")), START_S)
        running[1].send_signal(signal.SIGKILL)
        ends = [process.wait(START_S) for process in running]
    assert ends[1] == -signal.SIGKILL
    if ends[0] != 0:  # it was in the middle of its steps
        assert orjson.loads((folder / "0" / "error.json").read_bytes())["code"] == "E-RANK-LOST"
    names = [sorted(path.name for path in (folder / side / "checkpoints").rglob("*optim*")) for side in ("0", "1")]
    assert len(set(names[0])) == 2
    assert set(names[0]) == set(names[1])
    with start_pair(pair, folder) as running:
        assert [process.wait(START_S) for process in running] == [0, 0]
    expected = load_file(alone.folder / "adapter_model.safetensors")
    for side in ("0", "1"):
        result = folder / side / "result" / "adapter"
        weights = load_file(result / "adapter_model.safetensors")
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert json.loads((result / "training.json").read_text())["losses"] == alone.record["losses"]
