"""`trainyard up`, runs through a real server and worker, a worker that is killed, `trainyard down`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flows.real_stack import Stack, kill_tree, wait_until
from trainyard.app.services import running

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600)]


def job(steps: int) -> tuple[str, ...]:
    pairs = {"dataset.path": "data.jsonl", "hyperparameters.max_steps": steps, "hyperparameters.save_steps": 20}
    return ("run", "training-job", *(word for key, value in pairs.items() for word in ("-p", f"{key}={value}")))


def test_a_second_up_is_quick_and_changes_nothing(stack: Stack) -> None:
    before = stack.json("up")
    started = time.monotonic()
    assert stack.json("up") == before
    assert time.monotonic() - started < 15, "a start takes half a minute and more; a busy machine three times as long"


def test_deploy_all_by_hand_works_too(stack: Stack) -> None:
    exports = stack.json("env")["variables"]
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=Path(__file__).parents[2], env={**os.environ, **exports}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_is_watched_to_its_end(stack: Stack) -> None:
    done = stack.command(*job(5), "--watch")
    assert done.returncode == 0, done.stderr
    assert "trainer: started" in done.stderr
    assert "2 nodes finished" in done.stdout


def test_a_worker_that_is_killed_in_a_training_and_started_again(stack: Stack) -> None:
    started = stack.json(*job(4000))
    run_id = started["run_id"]
    wait_until(lambda: stack.last_progress(run_id) > 0.02, 120)
    worker = running(stack.settings, "worker")
    assert worker is not None
    kill_tree(worker.pid)
    again = stack.command("up")
    assert f"the run {run_id} had died with its worker" in again.stderr
    assert stack.state_of(run_id)["type"] == "CRASHED"
    assert f"trainyard jobs resume {started['id']} --watch" in stack.state_of(run_id)["message"]
    done = stack.command("run", run_id, "--watch")
    assert done.returncode == 0, done.stderr
    assert "was started before and continues from the checkpoint of step" in done.stderr
    assert "data-source: started" not in done.stderr, "what the first attempt did is not told again"
    assert "data-source  reused" in done.stdout


def test_a_run_outlives_its_worker(stack: Stack) -> None:
    run_id = stack.json(*job(800))["run_id"]
    wait_until(lambda: stack.last_progress(run_id) > 0.02, 120)
    worker = running(stack.settings, "worker")
    assert worker is not None
    assert worker.process() is not None
    os.kill(worker.pid, signal.SIGKILL)
    again = stack.command("up")
    assert run_id not in again.stderr, "the run's process lives, so the run is not dead"
    wait_until(lambda: stack.state_of(run_id)["type"] not in ("RUNNING", "PENDING"), 240)
    assert stack.state_of(run_id)["type"] == "COMPLETED"
    assert "2 nodes finished" in stack.state_of(run_id)["message"]


def test_down_ends_what_up_started_and_nothing_else(stack: Stack) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        worker, server = running(stack.settings, "worker"), running(stack.settings, "server")
        assert worker is not None
        assert server is not None
        assert set(stack.json("down")["stopped"]) >= {"worker", "server"}
        assert worker.process() is None
        assert server.process() is None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
