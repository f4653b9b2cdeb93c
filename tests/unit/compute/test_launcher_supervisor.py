"""Several processes under one contract: one stop for all, one error that tells the cause, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainyard.compute.events import Event
from trainyard.compute.rank_process import read_notes
from trainyard.compute.supervise import DesiredState, Outcome, Status, supervise

pytestmark = pytest.mark.integration

SUPERVISOR = "trainyard.compute.launcher_supervisor"
SIZE = 2


def build_argv(folder: Path, program: str) -> list[str]:
    """The command line of a supervisor whose processes run a program of `crews`."""
    launcher = [sys.executable, "-m", "tests.unit.compute.crews", str(SIZE), program, str(folder)]
    return [sys.executable, "-m", SUPERVISOR, str(folder), str(SIZE), "--", *launcher]


class Crew:
    """A supervised run of several processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, list[Event]()

    def run(self, program: str, stop: str = "", **options: object) -> Outcome:
        """`stop` names a file whose appearance leads to a stop request."""

        def read_desired_state() -> DesiredState:
            return DesiredState.PAUSE if stop and (self.folder / stop).exists() else DesiredState.RUN

        return supervise(
            build_argv(self.folder, program),
            self.folder,
            desired_state=read_desired_state,
            on_event=self.events.append,
            poll_s=0.05,
            **options,  # type: ignore[arg-type]
        )

    def of(self, event: str) -> list[Event]:
        return [entry for entry in self.events if entry["event"] == event]

    def pids(self) -> list[int]:
        return [note["pid"] for note in read_notes(self.folder).values()]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


def supervisor(folder: Path) -> psutil.Process:
    """The supervised child of this test."""
    return next(child for child in psutil.Process().children() if str(folder) in child.cmdline())


def wait_until_gone(pids: list[int], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_all_of_them_work_and_the_first_tells(crew: Crew) -> None:
    assert crew.run("works").status is Status.DONE
    assert [event["step"] for event in crew.of("progress")] == [1, 2, 3]
    assert sorted(path.name for path in crew.folder.glob("finished-*")) == ["finished-0", "finished-1"]
    assert [len(crew.of(name)) for name in ("started", "done")] == [1, 1]
    event_lines = (crew.folder / "ranks" / "1.events.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in event_lines] == [1, 2, 3]


def test_a_stop_reaches_the_first_and_ends_all_of_them(crew: Crew) -> None:
    outcome = crew.run("stops", stop="at-1")
    assert (outcome.status, outcome.reason, outcome.killed) == (Status.STOPPED, "pause", False)
    assert crew.of("stopped")[0]["step"] < 1000
    assert {note["status"] for note in read_notes(crew.folder).values()} == {"stopped", "done"}
    assert wait_until_gone(crew.pids())


def test_a_signal_to_everybody_lets_the_first_save(crew: Crew) -> None:
    """As when a machine is taken back: the launcher gets the signal too, and must not end who is saving."""
    signalled = list[int]()

    def read_desired_state() -> DesiredState:
        if len(read_notes(crew.folder)) == SIZE and not signalled:
            time.sleep(0.2)
            child = supervisor(crew.folder)
            for process in [child, *child.children(recursive=True)]:
                signalled.append(process.pid)
                process.send_signal(signal.SIGTERM)
        return DesiredState.RUN

    outcome = supervise(
        build_argv(crew.folder, "saves_slowly"), crew.folder, desired_state=read_desired_state, poll_s=0.05
    )
    assert len(signalled) == SIZE + 2
    assert (outcome.status, outcome.reason) == (Status.STOPPED, "saved")
    assert (crew.folder / "saved").exists()


def test_the_error_of_who_failed_first_is_told(crew: Crew) -> None:
    outcome = crew.run("refuses")
    assert outcome.status is Status.FAILED
    assert outcome.error is not None
    assert (outcome.error["kind"], outcome.error["code"]) == ("InvalidInput", "E-DATA-EMPTY")
    assert (outcome.error["what"], outcome.error["do"]) == ("The rows are wrong.", "Mend it.")
    assert wait_until_gone(crew.pids())


def test_a_process_that_is_killed_is_named_and_the_others_are_ended(crew: Crew) -> None:
    outcome = crew.run("dies")
    assert outcome.error is not None
    assert outcome.error["code"] == "E-RANK-LOST"
    assert outcome.error["what"].startswith("Process 1 of 2 that trained together was ended from outside (pid ")
    assert wait_until_gone(crew.pids())


def test_processes_that_ignore_a_stop_are_ended_after_the_grace(crew: Crew) -> None:
    outcome = crew.run("lingers", stop="ranks/1.json", grace_s=1.0)
    assert outcome.status is Status.STOPPED
    assert outcome.killed
    assert wait_until_gone(crew.pids())


@pytest.mark.parametrize("saved_before", [False, True], ids=["at once", "when its ranks have saved"])
def test_a_launcher_that_is_killed_is_named(crew: Crew, saved_before: bool) -> None:
    """Its ranks save and stop when it dies; that must not pass for a stop of the run, however fast they are."""
    killed = list[int]()

    def read_desired_state() -> DesiredState:
        if (crew.folder / "at-1").exists() and not killed:
            supervising = supervisor(crew.folder)
            (launcher,) = supervising.children()
            killed.append(launcher.pid)
            if saved_before:
                supervising.suspend()
            launcher.kill()
            while saved_before and read_notes(crew.folder)[0]["status"] != "stopped":
                time.sleep(0.02)
            supervising.resume()
        return DesiredState.RUN

    outcome = supervise(build_argv(crew.folder, "stops"), crew.folder, desired_state=read_desired_state)
    assert outcome.error is not None
    assert outcome.error["code"] == "E-RANK-LOST"
    assert outcome.error["what"].startswith("The launcher of the 2 processes that trained together was ended from out")
    assert outcome.error["what"].endswith("by SIGKILL.")
    assert wait_until_gone(crew.pids())


@pytest.fixture
def orphan(crew: Crew) -> Iterator[subprocess.Popen[bytes]]:
    """A process of an earlier start in this folder, whose supervisor is gone."""
    argv = [
        sys.executable,
        "-m",
        "trainyard.compute.rank_process",
        "tests.unit.compute.crews:lingers",
        str(crew.folder),
    ]
    with subprocess.Popen(argv, env={**os.environ, "RANK": "0"}) as process:
        while not read_notes(crew.folder):
            time.sleep(0.02)
        yield process
        process.kill()


def test_a_start_waits_for_the_processes_of_an_earlier_one(crew: Crew, orphan: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()

    def read_desired_state() -> DesiredState:
        if orphan.poll() is None and time.monotonic() - started > 3:
            assert crew.pids() == [orphan.pid], "none of the new ones was started"
            orphan.kill()
        return DesiredState.RUN

    outcome = supervise(build_argv(crew.folder, "works"), crew.folder, desired_state=read_desired_state, poll_s=0.05)
    assert outcome.status is Status.DONE
    assert orphan.pid not in crew.pids()


def test_a_start_that_waits_for_an_earlier_one_can_be_stopped(crew: Crew, orphan: subprocess.Popen[bytes]) -> None:
    started = time.monotonic()

    def read_desired_state() -> DesiredState:
        return DesiredState.CANCEL if time.monotonic() - started > 2 else DesiredState.RUN

    outcome = supervise(build_argv(crew.folder, "works"), crew.folder, desired_state=read_desired_state, poll_s=0.05)
    assert (outcome.status, outcome.reason, outcome.killed) == (Status.STOPPED, "cancel", False)
    assert orphan.poll() is None


def test_a_missing_launcher_is_reported(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", SUPERVISOR, str(tmp_path), "2", "--", str(tmp_path / "torchrun")]
    outcome = supervise(argv, tmp_path)
    assert outcome.error is not None
    assert outcome.error["code"] == "E-PROGRAM"


def test_a_launcher_that_starts_nothing_is_reported(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such option')"]
    outcome = supervise([sys.executable, "-m", SUPERVISOR, str(tmp_path), "2", "--", *argv], tmp_path)
    assert outcome.error is not None
    assert (outcome.error["code"], outcome.error["why"]) == ("E-LAUNCH", "no such option")


def test_nothing_survives_a_killed_supervisor(crew: Crew) -> None:
    """The launcher dies with it; the processes are told by the kernel, and the first one ends at a safe point."""

    def read_desired_state() -> DesiredState:
        if (crew.folder / "at-1").exists():
            supervisor(crew.folder).kill()
        return DesiredState.RUN

    outcome = supervise(build_argv(crew.folder, "stops"), crew.folder, desired_state=read_desired_state, poll_s=0.05)
    assert outcome.status is Status.FAILED
    assert wait_until_gone(crew.pids())


@pytest.mark.parametrize("reaped", [True, False])
def test_a_process_that_starts_after_its_supervisor_died_ends_at_once(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, reaped: bool
) -> None:
    """No signal can reach it any more: it came to life after the launcher had died.

    Until the parent has read the exit code, the pid still exists: it is that of a zombie.
    """
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    monkeypatch.setenv("TRAINYARD_RANKS_PID", str(ended.pid))
    monkeypatch.setenv("RANK", "0")
    argv = [sys.executable, "-m", "trainyard.compute.rank_process", "tests.unit.compute.crews:stops", str(crew.folder)]
    assert subprocess.run(argv, timeout=60, check=False).returncode == 0
    ended.wait()
    assert read_notes(crew.folder)[0]["status"] == "stopped"
