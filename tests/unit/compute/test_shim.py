"""Programs that do not speak the contract, under the shim that does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil

from trainyard.compute.child import LOG_FILE
from trainyard.compute.supervise import DesiredState, Outcome, Status, supervise

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read(): time.sleep(0.01)
"""


def shim(folder: Path, *argv: str, grace_s: float = 30, **more: Any) -> tuple[Outcome, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "trainyard.compute.shim", str(folder), str(grace_s), "--", *argv]
    return supervise(command, folder, on_event=events.append, poll_s=0.05, **more), events


def test_program_ends_well_and_its_output_is_in_the_log(tmp_path: Path) -> None:
    result, events = shim(tmp_path, "echo", "hello")
    assert result.status is Status.DONE
    assert (tmp_path / "child.log").read_text() == "hello\n"
    assert events[1]["argv"] == ["echo", "hello"]


def test_exit_code_and_last_line_become_the_error(tmp_path: Path) -> None:
    result, _ = shim(tmp_path, "sh", "-c", "echo out of disk >&2; exit 3")
    assert result.error is not None
    assert (result.error["code"], result.error["why"]) == ("E-PROGRAM", "out of disk")
    assert "sh ended with exit code 3" in result.error["what"]


def test_exit_code_of_a_stopped_program_is_handed_on(tmp_path: Path) -> None:
    result, _ = shim(tmp_path, "sh", "-c", "exit 75")
    assert (result.status, result.exit_code) == (Status.STOPPED, 75)


def test_missing_program_is_named(tmp_path: Path) -> None:
    result, _ = shim(tmp_path, "no-such-program")
    assert result.error is not None
    assert result.error["code"] == "E-PROGRAM"
    assert "'no-such-program' cannot be started" in result.error["what"]


def test_stop_reaches_the_program_as_a_signal(tmp_path: Path) -> None:
    script = "trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    log = tmp_path / LOG_FILE
    result, _ = shim(
        tmp_path,
        "sh",
        "-c",
        script,
        desired_state=lambda: DesiredState.PAUSE if log.is_file() and "ready" in log.read_text() else DesiredState.RUN,
    )
    assert result.status in (Status.DONE, Status.STOPPED)
    assert "got TERM" in log.read_text()


def test_stubborn_program_is_killed_after_its_grace_and_counts_as_stopped(tmp_path: Path) -> None:
    result, _ = shim(tmp_path, "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", grace_s=0.3, budget_s=0.5)
    assert (result.status, result.reason) == (Status.STOPPED, "budget")
    assert result.seconds < 60


def test_daemon_that_detached_itself_twice_is_ended(tmp_path: Path) -> None:
    result, _ = shim(tmp_path, sys.executable, "-c", DAEMON, str(tmp_path / "daemon"))
    assert result.status is Status.DONE
    daemon = int((tmp_path / "daemon").read_text())
    assert not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE
