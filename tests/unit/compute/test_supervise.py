"""Supervision with real processes: events, stops, budgets, and that nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.backends.results import log_head
from trainyard.compute.child import EVENTS_FILE, LOG_FILE
from trainyard.compute.events import EventTail
from trainyard.compute.supervise import DesiredState, Outcome, Status, read_error, supervise

CONTRACT = """
import sys, time, os, signal
from pathlib import Path
from trainyard.compute.child import Stopped, child_contract, faultpoint
from trainyard.errors import InvalidInput
folder = Path(sys.argv[1])
with child_contract(folder) as events:
"""


def program(body: str) -> list[str]:
    """argv of a program that runs `body` inside the contract; the folder is its argument."""
    indented = "\n".join("    " + line for line in body.strip().splitlines())
    return [sys.executable, "-c", CONTRACT + indented]


def run(folder: Path, body: str, **options: Any) -> tuple[Outcome, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    options.setdefault("poll_s", 0.05)
    result = supervise([*program(body), str(folder)], folder, on_event=events.append, **options)
    return result, events


def list_names(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


def wait_until_gone(pid: int, within_s: float = 30.0) -> bool:
    """Whether a process is no longer running (a zombie that nobody has reaped counts as gone)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def wait_for_work(folder: Path, then: DesiredState) -> Callable[[], DesiredState]:
    """Wait until the child has reported a step: before, it does not listen to a stop yet."""
    events = folder / EVENTS_FILE
    return lambda: then if events.is_file() and b'"progress"' in events.read_bytes() else DesiredState.RUN


WORK_UNTIL_STOPPED = """
for step in range(10_000):
    events.emit("progress", step=step)
    if events.stop_requested():
        raise Stopped("saved", step=step)
    time.sleep(0.02)
"""


def test_done_child_hands_over_its_events_in_order(tmp_path: Path) -> None:
    result, events = run(tmp_path, "for step in range(3): events.emit('progress', step=step, loss=float('nan'))")
    assert (result.status, result.exit_code, result.error) == (Status.DONE, 0, None)
    assert list_names(events) == ["started", "progress", "progress", "progress", "done"]
    assert [event["step"] for event in events[1:4]] == [0, 1, 2]
    assert events[1]["loss"] is None


@pytest.mark.parametrize("desired", [DesiredState.PAUSE, DesiredState.CANCEL])
def test_a_wanted_stop_ends_with_75_and_its_reason(tmp_path: Path, desired: DesiredState) -> None:
    result, events = run(tmp_path, WORK_UNTIL_STOPPED, desired_state=wait_for_work(tmp_path, desired))
    assert (result.status, result.exit_code, result.reason) == (Status.STOPPED, 75, desired.value)
    assert events[-1]["event"] == "stopped"
    assert events[-1]["step"] > 0
    assert not result.killed


def test_budget_stops_the_child_once_and_lets_it_save(tmp_path: Path) -> None:
    result, _ = run(tmp_path, WORK_UNTIL_STOPPED, budget_s=0.3)
    assert (result.status, result.reason) == (Status.STOPPED, "budget")
    assert result.seconds < 60


def test_child_that_ignores_sigterm_is_killed_after_the_grace_with_its_children(tmp_path: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import subprocess
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
events.emit("progress", worker=worker.pid)
time.sleep(600)
"""
    result, events = run(tmp_path, body, desired_state=wait_for_work(tmp_path, DesiredState.PAUSE), grace_s=0.5)
    assert (result.status, result.reason, result.killed) == (Status.STOPPED, "pause", True)
    assert wait_until_gone(events[1]["worker"])


def test_forks_of_a_finished_child_are_ended(tmp_path: Path) -> None:
    body = """
import subprocess
daemon = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nprint(os.getpid(), flush=True)\\ntime.sleep(600)"
first = subprocess.Popen([sys.executable, "-c", daemon], stdout=open(folder / "daemon", "w"))
first.wait()
while not (folder / "daemon").read_text().strip(): time.sleep(0.01)
"""
    result, _ = run(tmp_path, body)
    assert result.status is Status.DONE
    assert wait_until_gone(int((tmp_path / "daemon").read_text()))


def test_error_of_ours_travels_as_it_is(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "raise InvalidInput('no rows', why='empty', do='add some', code='E-X')")
    assert result.status is Status.FAILED
    assert result.error == {"kind": "InvalidInput", "code": "E-X", "what": "no rows", "why": "empty", "do": "add some"}


def test_unforeseen_error_is_one_line_and_the_traceback_is_in_the_log(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "raise RuntimeError('boom')")
    assert result.error is not None
    assert result.error["code"] == "E-CRASH"
    assert "RuntimeError: boom" in result.error["what"]
    assert "Traceback" not in str(result.error)
    assert "Traceback" in (tmp_path / LOG_FILE).read_text()


@pytest.mark.parametrize(
    ("raised", "code"), [("OSError(28, 'No space left on device')", "E-DISK-FULL"), ("MemoryError()", "E-MEMORY")]
)
def test_full_disk_and_memory_have_their_own_codes(tmp_path: Path, raised: str, code: str) -> None:
    result, _ = run(tmp_path, f"raise {raised}")
    assert result.error is not None
    assert result.error["code"] == code


def test_death_by_signal_is_told(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.status, result.exit_code) == (Status.FAILED, -9)
    assert result.error is not None
    assert result.error["code"] == "E-KILLED"
    assert "SIGKILL" in result.error["what"]
    assert result.error["why"] == "The kernel counted no kill for want of memory in that time."
    assert result.error["do"] == "Resume the run: what was saved is used."


@pytest.mark.parametrize(
    ("exit_code", "counted", "why"),
    [
        (-signal.SIGKILL, True, "The kernel ended a process for want of memory in that time."),
        (-signal.SIGKILL, False, "The kernel counted no kill for want of memory in that time."),
        (-signal.SIGSEGV, True, ""),
    ],
)
def test_memory_is_named_only_when_the_kernel_counted_it(
    exit_code: int, counted: bool, why: str, tmp_path: Path
) -> None:
    error = read_error(tmp_path, exit_code, counted)
    assert (error["code"], error["why"]) == ("E-KILLED", why)
    assert ("batch_size" in error["do"]) == (counted and exit_code == -signal.SIGKILL)


def test_program_outside_the_contract_gives_its_last_log_line(tmp_path: Path) -> None:
    result = supervise([sys.executable, "-c", "import sys; sys.exit('no such flag: --x')"], tmp_path, poll_s=0.05)
    assert result.error is not None
    assert (result.error["code"], result.error["why"]) == ("E-CRASH", "no such flag: --x")


def test_bars_of_the_libraries_are_not_in_the_log(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "import tqdm\nfor _ in tqdm.tqdm(range(3)): print('said')")
    assert result.status is Status.DONE
    assert (tmp_path / LOG_FILE).read_text() == "said\n" * 3


@pytest.mark.parametrize(("fault", "emitted"), [("b", 1), ("b#2", 2), ("c", 3), (None, 3)])
def test_faultpoint_kills_at_its_name_and_pass_only(tmp_path: Path, fault: str | None, emitted: int) -> None:
    body = "for _ in range(3): faultpoint('a'); events.emit('between'); faultpoint('b')"
    result, events = run(tmp_path, body, env={"TRAINYARD_FAULT": fault} if fault else {})
    assert list_names(events).count("between") == emitted
    assert result.exit_code == (-9 if emitted < 3 else 0)


@pytest.mark.parametrize("mebibytes", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_flood_of_log_does_not_hold_the_loop(tmp_path: Path, mebibytes: int) -> None:
    """Polls go on while the child floods its log: a loop that carried the log itself would stand for all of it."""
    polls: list[float] = []

    def read_desired_state() -> DesiredState:
        polls.append(time.monotonic())
        return DesiredState.RUN

    body = f"block = 'x' * (1 << 20)\nfor _ in range({mebibytes}): print(block)"
    result, _ = run(tmp_path, body, desired_state=read_desired_state)
    assert result.status is Status.DONE
    assert (tmp_path / LOG_FILE).stat().st_size > mebibytes << 20
    assert max((b - a for a, b in itertools.pairwise(polls)), default=0.0) < 3.0  # 0.1 s on idle cores
    (tmp_path / LOG_FILE).unlink()


def test_listener_that_raises_leaves_no_child(tmp_path: Path) -> None:
    pids: list[int] = []

    def refuse(event: dict[str, Any]) -> None:
        pids.append(event["pid"])
        raise ValueError("listener")

    with pytest.raises(ValueError, match="listener"):
        supervise([*program(WORK_UNTIL_STOPPED), str(tmp_path)], tmp_path, on_event=refuse, poll_s=0.05)
    assert wait_until_gone(pids[0])


PARENT = """
import sys
from pathlib import Path
from trainyard.compute.supervise import supervise
supervise(sys.argv[2:], Path(sys.argv[1]), poll_s=0.05)
"""


def test_child_saves_and_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    child = [*program(WORK_UNTIL_STOPPED), str(tmp_path)]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), *child])
    tail, events = EventTail(tmp_path / EVENTS_FILE), []
    while not events:
        events = tail.read()
        time.sleep(0.02)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait_until_gone(events[0]["pid"])
    assert [*events, *tail.read_rest()][-1]["event"] == "stopped"


def test_restart_reads_only_new_events_and_forgets_the_old_error(tmp_path: Path) -> None:
    run(tmp_path, "raise RuntimeError('first')")
    result, events = run(tmp_path, "events.emit('progress', step=1)")
    assert (result.status, result.error) == (Status.DONE, None)
    assert list_names(events) == ["started", "progress", "done"]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 5))
def test_tail_reads_every_event_once_however_the_file_grows(pieces: list[int], count: int) -> None:
    path = Path(f"/proc/self/fd/{os.memfd_create('events')}")
    text = b"".join(orjson.dumps({"event": "progress", "step": step}) + b"\n" for step in range(count))
    tail, seen, position = EventTail(path), [], 0
    with path.open("ab") as stream:
        for piece in [*pieces, len(text)]:
            stream.write(text[position : position + piece])
            stream.flush()
            position += piece
            seen += tail.read()
    os.close(int(path.name))
    assert [event["step"] for event in seen] == list(range(count))


def test_tail_reports_garbage_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'not json\n[1]\n\n{"event":"a"}\n{"event":"b"}')
    tail = EventTail(path)
    assert list_names(tail.read()) == ["warning", "warning", "a"]
    assert list_names(list(tail.read_rest())) == ["b"]


def test_tail_skips_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"x" * (3 << 20))
    tail = EventTail(path)
    assert "longer than 1 MiB" in tail.read()[0]["text"]
    with path.open("ab") as stream:
        stream.write(b'yyy\n{"event":"a"}\n')
    assert list_names(tail.read()) == ["a"]


def test_tail_starts_again_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"event":"first"}\n')
    tail = EventTail(path)
    tail.read()
    path.write_bytes(b'{"event":"b"}\n')
    assert list_names(tail.read()) == ["b"]


def test_a_child_knows_the_run_that_it_belongs_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "print('mine', os.environ['TRAINYARD_RUN_ID'])"
    monkeypatch.setenv("TRAINYARD_RUN_ID", "0aa885f8")
    done, events = run(tmp_path, body)
    assert done.status is Status.DONE
    assert [event.get("run") for event in events if event["event"] == "started"] == ["0aa885f8"]
    head, line = (tmp_path / LOG_FILE).read_text().splitlines()
    assert head.startswith("# Trainyard run 0aa885f8, 20")
    assert line == "mine 0aa885f8"


def test_the_header_of_a_log_is_not_what_a_child_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_RUN_ID", "0aa885f8")
    done = supervise([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, poll_s=0.05)
    assert done.error is not None
    assert done.error["why"] == ""
    assert log_head(tmp_path / LOG_FILE) == ""


def test_without_a_run_a_log_has_no_header(tmp_path: Path) -> None:
    _, events = run(tmp_path, "print('mine')")
    assert (tmp_path / LOG_FILE).read_text() == "mine\n"
    assert not any("run" in event for event in events)
