"""The parent's side of supervision: start a program, tail its events, stop it in time, leave no process behind.

One loop serves trainers, evaluations and servers. It never blocks longer than `poll_s`: the child writes events and
log to *files* (a pipe would kill a child whose parent died before it has saved, inherited output would keep a dead
flow "running"), so a gigabyte of log costs the parent nothing. The child stays in the caller's process group; what is
ended is its process *tree*, by pid and start time, never a group.

A pause, a cancellation or an exceeded budget is one SIGTERM (`StopRequest`): the child notes it (`compute/child.py`),
saves a checkpoint at its next safe point (`train/loop.py`) and exits with 75.

The calling thread must live as long as the child: the kernel signals the child when the thread that started it ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import orjson
import psutil

from trainyard import tracing
from trainyard.callbacks import ignore
from trainyard.compute import child
from trainyard.compute.events import Event, EventTail, read_end
from trainyard.errors import TrainyardError
from trainyard.inherited import UMASK, child_environment
from trainyard.json_types import JsonObject

TREE_REFRESH_S = 2.0
ABANDONED_GRACE_S = 20.0
"""Time for the child to save when the caller itself is interrupted."""
TAIL_BYTES = 8192
LOG_HEADER = "# Trainyard run "
"""Beginning of the line that precedes what a child of a run prints; work folders are shared by runs."""
NO_BARS = {"TQDM_DISABLE": "1"}
"""A child writes into a file, where the progress bars of libraries would be hundreds of useless lines."""
VMSTAT, CGROUP_EVENTS = Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")
MEMORY_CODES = frozenset({"E-DEVICE-MEMORY", "E-MEMORY"})
"""Codes of errors for want of memory."""
MEMORY_TEXTS = re.compile(
    r"out of memory|OutOfMemoryError|can't allocate memory|cannot allocate memory|not enough memory|std::bad_alloc"
    r"|MemoryError|ALLOC_FAILED|Insufficient Memory|failed to allocate|unable to allocate",
    re.IGNORECASE,
)
"""What torch (CUDA, HIP and CPU), cuBLAS, NumPy, the C++ runtime, Metal and ggml say."""


class DesiredState(StrEnum):
    """State that the owner of a run wants its child to be in."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    PREEMPT = "preempt"
    """The caller itself has been asked to end, and the run continues later."""
    SPEND = "spend"
    """A spending limit is reached."""


class Status(StrEnum):
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a supervised program."""

    status: Status
    exit_code: int
    """Negative: the number of the signal that ended it."""
    reason: str
    """pause, cancel, preempt, spend or budget if the parent asked; else the reason in the child's `stopped` event."""
    error: JsonObject | None
    """{kind, code, what, why, do} of a failed program."""
    seconds: float
    killed: bool = False
    """It did not stop within the grace and its tree was killed; only earlier checkpoints exist."""


def keep_running() -> DesiredState:
    return DesiredState.RUN


class ProcessTree:
    """A process and everything that descends from it, remembered by pid and start time."""

    def __init__(self, pid: int) -> None:
        self.processes: set[psutil.Process] = set()
        self._refreshed = 0.0
        try:
            self.processes.add(psutil.Process(pid))
        except psutil.NoSuchProcess:
            self.processes = set()  # it was gone before we could look

    def refresh(self, every_s: float = 0.0) -> None:
        """Note new descendants; costs about a millisecond per hundred processes of the machine."""
        if time.monotonic() - self._refreshed < every_s:
            return
        for process in list(self.processes):
            try:
                self.processes.update(process.children(recursive=True))
            except psutil.NoSuchProcess:
                continue  # its own children are known from an earlier look
        self._refreshed = time.monotonic()

    def end(self) -> None:
        """SIGKILL everything that is still running, until nothing is."""
        for _ in range(child.MOST_KILLS):
            self.refresh()
            living = [process for process in self.processes if child.alive(process)]
            if not living:
                return
            child.kill(living)


@dataclass
class StopRequest:
    """Stop request of a child: its reason and time."""

    budget_s: float | None
    grace_s: float
    folder: Path
    started: float = field(default_factory=time.monotonic)
    reason: str = ""
    kill_at: float | None = None

    def update(self, desired: DesiredState, process: subprocess.Popen[bytes]) -> None:
        """Ask once, by SIGTERM to the child alone; a later cancel replaces the reason of a pause."""
        over = self.budget_s is not None and time.monotonic() - self.started > self.budget_s
        reason = desired.value if desired is not DesiredState.RUN else "budget" if over else ""
        if not reason or self.reason in (reason, DesiredState.CANCEL):
            return
        is_first = not self.reason
        if is_first or reason == DesiredState.CANCEL:
            self.reason = reason
            (self.folder / child.STOP_FILE).write_text(reason, encoding="utf-8")
        if is_first:
            self.kill_at = time.monotonic() + self.grace_s
            process.send_signal(signal.SIGTERM)

    @property
    def grace_over(self) -> bool:
        return self.kill_at is not None and time.monotonic() > self.kill_at


def supervise(
    argv: list[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    desired_state: Callable[[], DesiredState] = keep_running,
    on_event: Callable[[Event], None] = ignore,
    budget_s: float | None = None,
    grace_s: float = 300,
    poll_s: float = 0.5,
) -> Outcome:
    """Run a program to its end under the contract of `trainyard.compute.child`.

    `folder` contains `spec.json`; events, log and error appear in it. `env` is set on top of what a child inherits
    (`trainyard.inherited`). `desired_state` is called at every poll; PAUSE, CANCEL, PREEMPT and the end of `budget_s`
    all lead to one SIGTERM, and after `grace_s` seconds to SIGKILL of the tree. `on_event` receives each event in
    order, on the calling thread.

    Returns the outcome; raises only what `desired_state` or `on_event` raise, after the child has been ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (child.ERROR_FILE, child.STOP_FILE):
        (folder / name).unlink(missing_ok=True)
    tail = EventTail.at_end(folder / child.EVENTS_FILE)
    kills = kernel_kills()
    last: list[Event] = []

    def hand_on(event: Event) -> None:
        if event["event"] == "stopped":
            last[:] = [event]
        on_event(event)

    with run_child(argv, folder, env, min(grace_s, ABANDONED_GRACE_S)) as (process, tree):
        stop = StopRequest(budget_s, grace_s, folder)
        while not wait_for_end(process, poll_s):
            for event in tail.read():
                hand_on(event)
            tree.refresh(every_s=TREE_REFRESH_S)
            stop.update(desired_state(), process)
            if stop.grace_over:
                tree.end()
        for event in tail.read_rest():
            hand_on(event)
    reason = str(last[0].get("reason", "")) if last else ""
    return outcome(process.returncode, stop, reason, folder, killed_for_memory=kernel_kills() > kills)


def kernel_kills(files: tuple[Path, ...] = (VMSTAT, CGROUP_EVENTS)) -> int:
    """Return how often the kernel killed a process for memory since it started: its counter, and that of our cgroup."""
    lines = [line.split() for path in files if path.is_file() for line in path.read_text().splitlines()]
    return sum(int(fields[1]) for fields in lines if fields[:1] == ["oom_kill"])


@contextmanager
def run_child(
    argv: list[str], folder: Path, env: Mapping[str, str] | None, abandoned_grace_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], ProcessTree]]:
    """Yield the running child; its whole tree is gone when the block is left, also by an exception."""
    environment = {**child_environment(NO_BARS), **(env or {}), child.PARENT_VARIABLE: str(os.getpid())}
    environment |= {tracing.VARIABLE: parent} if (parent := tracing.current_traceparent()) else {}
    with (folder / child.LOG_FILE).open("ab") as log:
        if run := environment.get(child.RUN_VARIABLE):
            log.write(f"{LOG_HEADER}{run}, {datetime.now(UTC).isoformat(timespec='seconds')}\n".encode())
            log.flush()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, umask=UMASK)
    tree = ProcessTree(process.pid)
    try:
        yield process, tree
    except BaseException:
        process.send_signal(signal.SIGTERM)
        wait_for_end(process, abandoned_grace_s)
        raise
    finally:
        tree.end()
        process.wait()


def wait_for_end(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait at most `timeout_s` for the end of a process."""
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def outcome(
    exit_code: int, stop: StopRequest, reason: str, folder: Path, *, killed_for_memory: bool = False
) -> Outcome:
    """Give the exit code its meaning."""
    seconds = time.monotonic() - stop.started
    if exit_code == 0:
        return Outcome(Status.DONE, 0, "", None, seconds)
    if exit_code == child.STOPPED_EXIT:
        return Outcome(Status.STOPPED, exit_code, stop.reason or reason, None, seconds)
    if stop.reason and exit_code in (-signal.SIGTERM, -signal.SIGKILL):
        return Outcome(Status.STOPPED, exit_code, stop.reason, None, seconds, killed=exit_code == -signal.SIGKILL)
    return Outcome(Status.FAILED, exit_code, reason, read_error(folder, exit_code, killed_for_memory), seconds)


def read_error(folder: Path, exit_code: int, killed_for_memory: bool) -> dict[str, object]:
    """Return `error.json`, or an error that is derived from the exit code and the log."""
    path = folder / child.ERROR_FILE
    if path.is_file():
        try:
            error: dict[str, object] = orjson.loads(path.read_bytes())
            return error
        except orjson.JSONDecodeError:
            return plain_error("E-CRASH", f"The program left an unreadable {child.ERROR_FILE}.", last_log_line(folder))
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        why, do = "", "Resume the run: what was saved is used."
        if name == "SIGKILL" and killed_for_memory:
            why = "The kernel ended a process for want of memory in that time."
            do = "Lower batch_size or max_length, or close other programs, then start it again."
        elif name == "SIGKILL":
            why = "The kernel counted no kill for want of memory in that time."
        return {**plain_error("E-KILLED", f"The program was ended from outside by {name}.", why), "do": do}
    return plain_error("E-CRASH", f"The program ended with exit code {exit_code}.", last_log_line(folder))


def plain_error(code: str, message: str, why: str) -> dict[str, object]:
    return {"kind": "TrainyardError", "code": code, "what": message, "why": why, "do": f"Read {child.LOG_FILE}."}


def last_log_line(folder: Path) -> str:
    """Return the last line that is not empty of the child's log, at most 500 characters."""
    return last_line(folder / child.LOG_FILE)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, at most 500 characters; "" where there is none."""
    lines = [line for line in read_tail(log).strip().splitlines() if not line.startswith(LOG_HEADER)]
    return lines[-1][:500] if lines else ""


def read_tail(log: Path) -> str:
    """Return the end of a log; "" where there is none."""
    return read_end(log, TAIL_BYTES)[0].decode("utf-8", "replace")


def ran_out_of_memory(error: TrainyardError, log: str, *, killed_by_kernel: bool) -> bool:
    """Whether a training ended for want of memory.

    SIGKILL alone proves nothing, an operator may have sent it: it counts when the kernel says that it killed somebody
    for memory in that time. `log` is the end of the child's log.
    """
    if error.code in MEMORY_CODES:
        return True
    if error.code == "E-KILLED":
        return killed_by_kernel and "SIGKILL" in error.what
    external = error.code in ("E-CRASH", "E-PROGRAM", "E-FAILED")
    return external and bool(MEMORY_TEXTS.search(f"{error.what} {error.why} {log}"))
