"""Housekeeping on a stack that is running: `gc` leaves what a resume needs, a backup makes a home that continues."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.flows.real_stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600)]
MONTH_S = 30 * 86_400.0


def age(*folders: Path) -> None:
    then = time.time() - MONTH_S
    for path in (path for folder in folders for path in sorted(folder.rglob("*"), reverse=True)):
        os.utime(path, (then, then))


def pause_job(stack: Stack, steps: int) -> str:
    run_id = stack.start_job(max_steps=steps)
    stack.wait_for_step(run_id, 5)
    stack.pause(run_id)
    return run_id


def resume(stack: Stack, run_id: str) -> None:
    resumed = stack.command("jobs", "resume", run_id, "--watch")
    assert resumed.returncode == 0, resumed.stderr
    assert "continues from the checkpoint of step" in resumed.stderr
    assert stack.finish(run_id)


def test_gc_leaves_what_a_paused_job_needs_and_removes_a_finished_one(stack: Stack) -> None:
    finished = stack.start_job(max_steps=5)
    stack.finish(finished)
    paused = pause_job(stack, 61)
    age(stack.settings.runs, stack.settings.artifacts)
    report = stack.json("gc", "--days", "1", "--dry-run")
    assert paused in report["open_runs"]
    assert stack.json("gc", "--days", "1")["items"] == report["items"]
    assert not (stack.settings.runs / finished).exists()
    assert (stack.settings.runs / paused).is_dir()
    resume(stack, paused)


def test_a_restored_stack_lists_its_jobs_and_resumes_the_paused_one(stack: Stack, tmp_path: Path) -> None:
    paused = pause_job(stack, 60)
    running = stack.start_job(max_steps=400)
    stack.wait_for_step(running)
    done = stack.command("backup", str(tmp_path / "backup.tar.gz"))
    assert done.returncode == 0, done.stderr
    stack.command("down")
    shutil.rmtree(stack.settings.home)

    again = stack.command("restore", str(tmp_path / "backup.tar.gz"))
    assert again.returncode == 0, again.stderr
    up = stack.command("up")
    assert up.returncode == 0, up.stderr
    states = {row["run_id"]: row["state"] for row in stack.json("jobs", "list")["jobs"]}
    assert states[paused] == "paused"
    assert states[running] in ("failed", "pending", "running"), "what was running has ended, or starts again"
    assert stack.command("jobs", "cancel", running).returncode in (0, 4)
    resume(stack, paused)
