"""A session of two processes whose parent, supervisor or launcher is killed: none of them is left, its state says so,
and a resume continues to the same bits.

Each process has one thread.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.backends.session_host import (
    ROWS,
    HostedSession,
    ParentedSession,
    host_session,
    make_record,
    wait_until_open,
)
from trainyard.backends.sessions.frames import send_frame
from trainyard.backends.sessions.records import SessionRecord, SessionState, read_status, write_record
from trainyard.compute.child import alive
from trainyard.compute.rank_process import read_notes
from trainyard.compute.supervise import DesiredState, Status
from trainyard.settings import Settings, load_settings

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(600)]

LAUNCH = {"strategy": "zero2", "processes": 2}
LONG = {"prompts": [{"tokens": [5, 6]}], "samples": 16, "sampling": {"max_new_tokens": 400, "stop_ids": []}}
"""Sampling that takes several seconds."""
ENDS = [
    ("supervisor", SessionState.LOST, "E-KILLED: The program was ended from outside by SIGKILL"),
    ("launcher", SessionState.FAILED, "E-RANK-LOST: The launcher of the 2 processes that trained together was ended"),
]
"""A process that is killed, and the state and reason that a living parent then writes."""


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


@pytest.fixture
def record(here: Settings, tiny_model: Path) -> SessionRecord:
    record = make_record(tiny_model, launch=LAUNCH)
    write_record(here, record)
    return record


@pytest.fixture
def session(here: Settings, record: SessionRecord) -> Iterator[ParentedSession]:
    session = ParentedSession(here, record).open()
    yield session
    session.parent.kill()
    session.parent.wait()


def list_processes(session: HostedSession, parent: psutil.Process) -> dict[str, psutil.Process]:
    """The processes of a session by what they do."""
    notes, children = read_notes(session.folder), parent.children(recursive=True)
    by_pid = {process.pid: process for process in children}
    supervisor = next(process for process in children if "trainyard.compute.launcher_supervisor" in process.cmdline())
    ranks = {f"rank {rank}": by_pid[note["pid"]] for rank, note in notes.items()}
    return {"supervisor": supervisor, "launcher": ranks["rank 0"].parent() or supervisor, **ranks}


def train(session: HostedSession) -> dict[str, Any]:
    """The numbers of a step, and the weights after it."""
    step = session.train_step(ROWS)
    name = f"after-{time.monotonic_ns()}"
    return {**step, "weights": session.call("save", name=name, kind="weights")["sha256"]}


def rehearse(session: HostedSession) -> dict[str, Any]:
    """Take two steps and go back to the first; returns the numbers of the second."""
    train(session)
    session.call("save", name="mid")
    second = train(session)
    session.call("load", name="mid")
    return second


def call_and_leave(session: HostedSession, verb: str, **options: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(session.socket_path())
        send_frame(connection, {"call": "verb", "verb": verb, "given": options, "wait_s": 0})


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(processes: dict[str, psutil.Process]) -> bool:
    return not any(map(alive, processes.values()))


@pytest.mark.parametrize("killed", [["parent"], ["parent", "supervisor"], ["parent", "launcher"]], ids="-".join)
def test_a_session_without_its_parent_ends_and_continues_to_the_same_bits(
    killed: list[str], session: ParentedSession, here: Settings, record: SessionRecord
) -> None:
    second = rehearse(session)
    processes = list_processes(session, psutil.Process(session.parent.pid))
    assert len(processes) == 4
    before = session.status()
    for name in killed:
        os.kill(session.parent.pid if name == "parent" else processes[name].pid, signal.SIGKILL)
    session.parent.wait()
    status = read_status(here, record.id)
    assert (status.state, status.detail) == (SessionState.LOST, "its process was killed")
    wait_until(lambda: has_ended(processes), 100)  # an orphan has 45 s to save, and then those that it leaves
    with host_session(here, record) as resumed:
        if killed == ["parent"]:  # it saved when it was left alone
            assert resumed.status()["op_seq"] == before["op_seq"]
        else:
            resumed.call("load", name="mid")
        assert train(resumed) == second
    assert read_status(here, record.id).state is SessionState.ENDED


def test_a_resume_waits_for_an_orphan_that_still_computes(
    session: ParentedSession, here: Settings, record: SessionRecord
) -> None:
    """Both use the status files of the processes, and the checkpoints: one after the other."""
    second = rehearse(session)
    processes = list_processes(session, psutil.Process(session.parent.pid))
    call_and_leave(session, "generate", **LONG)
    time.sleep(0.5)
    session.parent.kill()
    session.parent.wait()
    assert read_status(here, record.id).state is SessionState.LOST
    resumed = HostedSession(here, record)
    resumed.thread.start()
    try:
        wait_until(lambda: "started" in [event["event"] for event in resumed.events], 60)
        assert not has_ended(processes)
        wait_until(lambda: has_ended(processes), 100)
        wait_until_open(resumed.folder, resumed.thread.is_alive)
        resumed.call("load", name="mid")
        assert train(resumed) == second
        assert resumed.close().status is Status.DONE
    finally:
        resumed.desired_state = DesiredState.CANCEL
        resumed.thread.join(60)


@pytest.mark.parametrize(("killed", "state", "detail"), ENDS)
def test_a_supervisor_or_launcher_that_is_killed_is_the_reason_of_the_end(
    killed: str, state: SessionState, detail: str, here: Settings, record: SessionRecord
) -> None:
    with host_session(here, record) as session:
        second = rehearse(session)
        processes = list_processes(session, psutil.Process())
        processes[killed].kill()
        outcome = session.wait(30)
        assert has_ended(processes)
        status = read_status(here, record.id)
    assert (outcome.status, status.state) == (Status.FAILED, state)
    assert status.detail.startswith(detail)
    with host_session(here, record) as resumed:
        resumed.call("load", name="mid")
        assert train(resumed) == second
