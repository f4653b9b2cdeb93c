"""Several hosts: two groups of processes on loopback, each under a launcher of its own, and hosts that do not fit."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs
from trainyard.backends import programs
from trainyard.backends.hosts import RANK_VARIABLE, find_place, prepare_hosts, require_hosts
from trainyard.backends.job import TrainingJob
from trainyard.backends.native.backend import SHARED_PROGRAM
from trainyard.compute.child import SPEC_FILE, alive
from trainyard.compute.rank_process import read_notes
from trainyard.errors import InvalidInput
from trainyard.spec.training import LaunchSettings
from trainyard.stores.whole import file_sha256


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def jobs_of_two_hosts(jobs: Jobs, **config: Any) -> list[TrainingJob]:
    """The same job on two hosts of one process each."""
    port = free_port()
    launches = [
        {"strategy": "ddp", "processes": 2, "nodes": 2, "node_rank": rank, "rendezvous": f"127.0.0.1:{port}"}
        for rank in range(2)
    ]
    hyper = {"batch_size": 4, "max_steps": 3, "epochs": None}
    return [jobs(backend="native", launch={**launch, **config}, hyperparameters=hyper) for launch in launches]


def start(job: TrainingJob, folder: Path) -> subprocess.Popen[bytes]:
    """The supervised child of a host, as a training starts it."""
    folder.mkdir()
    (folder / SPEC_FILE).write_bytes(orjson.dumps(job.model_dump(mode="json")))
    prepare_hosts(job, folder)
    return launch(job, folder)


def launch(job: TrainingJob, folder: Path) -> subprocess.Popen[bytes]:
    argv = programs.command(job, SHARED_PROGRAM, folder)
    environment = {**programs.environment(job), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.Popen([sys.executable, *argv[1:]], env=environment)


@pytest.mark.integration
@pytest.mark.timeout(200)
def test_both_hosts_end_with_the_same_result(jobs: Jobs, tmp_path: Path) -> None:
    pair = jobs_of_two_hosts(jobs)
    pair[1] = pair[1].model_copy(update={"data": {}, "locks": str(tmp_path / "locks")})  # only the first reads rows
    running = [start(job, tmp_path / str(number)) for number, job in enumerate(pair)]
    assert [process.wait(180) for process in running] == [0, 0]
    files = [
        sorted(path.relative_to(tmp_path / side) for path in (tmp_path / side / "result").rglob("*") if path.is_file())
        for side in ("0", "1")
    ]
    assert files[0] == files[1]
    assert any(path.name == "adapter_model.safetensors" for path in files[0])
    assert all(file_sha256(tmp_path / "0" / path) == file_sha256(tmp_path / "1" / path) for path in files[0])


@pytest.mark.integration
@pytest.mark.timeout(200)
def test_a_host_with_another_base_is_refused_by_its_name(jobs: Jobs, tmp_path: Path) -> None:
    pair = jobs_of_two_hosts(jobs)
    pair[1] = pair[1].model_copy(update={"base_sha256": "another", "locks": str(tmp_path / "locks")})
    running = [start(job, tmp_path / str(number)) for number, job in enumerate(pair)]
    assert [process.wait(180) == 0 for process in running] == [False, False]
    for side in ("0", "1"):
        error = orjson.loads((tmp_path / side / "error.json").read_bytes())
        assert error["code"] == "E-LAUNCH"
        assert f"{socket.gethostname()} (number 1) has base another" in error["what"]
        assert not (tmp_path / side / "result").exists()


PREPARE = """
import sys
from pathlib import Path
from trainyard.backends.hosts import prepare_hosts
from trainyard.backends.job import TrainingJob
folder = Path(sys.argv[1])
prepare_hosts(TrainingJob.model_validate_json((folder / "spec.json").read_bytes()), folder)
"""


@pytest.mark.integration
@pytest.mark.timeout(200)
def test_a_host_with_another_version_is_refused_with_both_versions(jobs: Jobs, tmp_path: Path) -> None:
    """The second host prepares with a package folder of its own, whose torch has another version."""
    pair, packages = jobs_of_two_hosts(jobs), tmp_path / "packages" / "torch-2.0.1.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.1\n")
    pair[1] = pair[1].model_copy(update={"locks": str(tmp_path / "locks")})
    first = start(pair[0], tmp_path / "0")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / SPEC_FILE).write_bytes(orjson.dumps(pair[1].model_dump(mode="json")))
    path = os.pathsep.join([str(packages.parent), str(REPOSITORY)])
    subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path / "1")], env={**os.environ, "PYTHONPATH": path}, check=True
    )
    second = launch(pair[1], tmp_path / "1")
    assert [process.wait(180) == 0 for process in (first, second)] == [False, False]
    name, version = socket.gethostname(), importlib.metadata.version("torch")
    for side in ("0", "1"):
        error = read_error(tmp_path / side)
        assert error["code"] == "E-LAUNCH"
        assert error["what"] == f"The hosts are not alike: {name} (number 1) has torch 2.0.1, and {name} {version}."
        assert not (tmp_path / side / "result").exists()


def test_the_argv_names_the_place_of_a_host(jobs: Jobs, tmp_path: Path) -> None:
    argv = programs.command(jobs_of_two_hosts(jobs)[1], SHARED_PROGRAM, tmp_path)
    assert argv[5] == "2:1"
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=1", "--master-addr=127.0.0.1"} <= set(argv)


def test_the_number_of_a_host_is_found_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = LaunchSettings(strategy="ddp", processes=2, hosts=("localhost", "203.0.113.1"))
    assert find_place(launch).node_rank == 0
    monkeypatch.setenv(RANK_VARIABLE, "1")
    assert find_place(launch) == replace(find_place(launch), node_rank=1, host="localhost")


def test_a_host_that_does_not_resolve_is_named() -> None:
    launch = LaunchSettings(strategy="ddp", processes=2, hosts=("localhost", "nowhere.invalid"))
    with pytest.raises(InvalidInput, match=r"E-LAUNCH: The host 'nowhere\.invalid' does not resolve"):
        require_hosts(launch)


def test_a_host_that_is_not_among_them_is_refused() -> None:
    launch = LaunchSettings(strategy="ddp", processes=2, hosts=("203.0.113.1", "203.0.113.2"))
    with pytest.raises(InvalidInput, match=r"E-LAUNCH: This host, .*, is none of 203\.0\.113\.1, 203\.0\.113\.2"):
        find_place(launch)


@pytest.mark.parametrize("text", ["2", "-1", "first"])
def test_a_number_that_no_host_has_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_VARIABLE, text)
    with pytest.raises(InvalidInput, match=rf"E-LAUNCH: {RANK_VARIABLE} is '{text}', and 2 hosts are numbered"):
        find_place(LaunchSettings(strategy="ddp", processes=2, hosts=("localhost", "203.0.113.1")))


def read_error(folder: Path) -> dict[str, str]:
    error: dict[str, str] = orjson.loads((folder / "error.json").read_bytes())
    return error


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", ["rank", "launcher", "supervisor"])
def test_a_host_that_is_lost_ends_the_training_on_both(killed: str, jobs: Jobs, tmp_path: Path) -> None:
    pair = [job.model_copy(update={"locks": str(tmp_path / f"locks-{n}")}) for n, job in enumerate(long_jobs(jobs))]
    running = [start(job, tmp_path / str(number)) for number, job in enumerate(pair)]
    wait_until(lambda: count_steps(tmp_path / "0") > 1, 180, "the first steps")
    trees = [psutil.Process(process.pid).children(recursive=True) for process in running]
    pids = {"rank": read_notes(tmp_path / "1")[1]["pid"], "launcher": running[1].pid, "supervisor": running[1].pid}
    if killed == "launcher":
        pids["launcher"] = next(child.pid for child in trees[1] if "torch.distributed.run" in child.cmdline())
    started = time.monotonic()
    os.kill(pids[killed], signal.SIGKILL)
    assert all(process.wait(120) for process in running)
    assert time.monotonic() - started < (90 if killed == "supervisor" else 40), "an orphan has 45 s to save"
    assert read_error(tmp_path / "0")["code"] == "E-RANK-LOST"
    assert "was lost on another host" in read_error(tmp_path / "0")["what"]
    if killed != "supervisor":
        assert read_error(tmp_path / "1")["code"] == "E-RANK-LOST"
    wait_until(lambda: not any(map(alive, [child for tree in trees for child in tree])), 60, "the end of all processes")


def long_jobs(jobs: Jobs) -> list[TrainingJob]:
    pair = jobs_of_two_hosts(jobs)
    return [with_steps(job, 2000) for job in pair]


def with_steps(job: TrainingJob, steps: int) -> TrainingJob:
    hyper = job.config.hyperparameters.model_copy(update={"max_steps": steps, "epochs": None})
    return job.model_copy(update={"config": job.config.model_copy(update={"hyperparameters": hyper})})


def count_steps(folder: Path) -> int:
    path = folder / "events.jsonl"
    return path.read_text(encoding="utf-8").count('"progress"') if path.is_file() else 0


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.1)
