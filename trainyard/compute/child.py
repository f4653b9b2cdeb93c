"""The child's side of supervision: events out, a stop request in, an exit code with a meaning.

    with child_contract(folder) as events:          # spec.json is in the folder already
        for step in work:
            events.emit("progress", step=step)
            if events.stop_requested():
                save()
                raise Stopped("asked to stop", step=step)

Exit 0 means done, 75 (`EX_TEMPFAIL`) stopped with everything saved, anything else failed with `error.json` in the
folder. The contract also ties the child's life to its parent's (`PR_SET_PDEATHSIG`) and makes it a sub-reaper, so that
its own children cannot escape. Imports nothing heavy: programs are started by `python -m trainyard.compute.launch`,
which enters the contract before the first slow import.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import psutil

from trainyard.errors import TrainyardError
from trainyard.stores.files import translate_os_errors
from trainyard.tracing import send_spans, span, trace_id
from trainyard.workers.trainyard_worker.contract import (
    ERROR_FILE,
    EVENTS_FILE,
    LOG_FILE,
    PR_SET_PDEATHSIG,
    SPEC_FILE,
    EventWriter,
    prctl,
)
from trainyard.workers.trainyard_worker.failures import crash

__all__ = ["LOG_FILE", "SPEC_FILE"]

STOPPED_EXIT = 75
FAILED_EXIT = 1
PARENT_VARIABLE = "TRAINYARD_PARENT_PID"
STOP_FILE = "stop"
"""Why the parent asked for an end; written before its SIGTERM, and again where a cancel follows a pause."""
RUN_VARIABLE = "TRAINYARD_RUN_ID"
"""Id of the run that a process belongs to: the flow's process sets it, and every child below inherits it."""
FAULT_VARIABLE = "TRAINYARD_FAULT"
ORPHAN_GRACE_S = 45
"""Time for a child to save after its parent died; `compute/leftovers.py` ends a child that ignores it."""

ERROR_RESERVE, RESERVED_BYTES = f".{ERROR_FILE}.reserved", 4096
"""A file that is reserved from the start, and how many bytes of `error.json` fit into it."""

BITSANDBYTES_CPU, MISSING_KERNEL = "bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward"
"""Its import on a CPU warns of a kernel that it downloads; the usual one computes the same (bitsandbytes 0.50)."""
MOST_KILLS = 10
"""Rounds of killing a tree, each up to 1 s; a process in an uninterruptible wait must not block the caller for ever."""

PR_SET_CHILD_SUBREAPER = 36

_passes: Counter[str] = Counter()


class Stopped(Exception):
    """The program stopped at a safe point because it was asked to; its state is saved."""

    def __init__(self, reason: str, **fields: Any) -> None:
        super().__init__(reason)
        self.reason, self.fields = reason, fields


class Events(EventWriter):
    """The append-only file that the parent tails, and the flag that a SIGTERM sets."""

    def __init__(self, path: Path, parent: int | None = None) -> None:
        super().__init__(path)
        self.parent = parent
        self._stop = False

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event. Raises `LimitExceeded` (`E-DISK-FULL`), `Unavailable` (`E-DISK-ERROR`)."""
        with translate_os_errors(f"{self.path} was not written"):
            super().emit(event, **fields)

    def stop_requested(self) -> bool:
        return self._stop

    def request_stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Signal handler: note the request. An orphan gets a time limit, since no parent will enforce one."""
        self._stop = True
        if is_orphaned(self.parent):
            signal.setitimer(signal.ITIMER_REAL, ORPHAN_GRACE_S)


def is_of_use(record: logging.LogRecord) -> bool:
    """Return whether a log line is more than that an optional kernel is not here."""
    return not str(record.msg).startswith(MISSING_KERNEL)


def silence_missing_kernel() -> None:
    """Leave the warning of the optional kernel out of the log of this process."""
    logging.getLogger(BITSANDBYTES_CPU).addFilter(is_of_use)


def is_orphaned(parent: int | None) -> bool:
    """Return whether the supervising parent is gone; False for a program that was started by hand (parent None)."""
    return parent is not None and os.getppid() != parent


def tie_to_parent() -> int | None:
    """Die with the parent: SIGTERM arrives when the thread that started this process ends. Returns the parent's pid.

    The variable that names the parent is taken out of the environment: it is not true for this process's own children.
    """
    parent_pid = os.environ.pop(PARENT_VARIABLE, None)
    if parent_pid is None:
        return None
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if is_orphaned(int(parent_pid)):  # it died between the fork and the line above
        raise SystemExit(STOPPED_EXIT)
    return int(parent_pid)


def read_stop_reason(folder: Path) -> str:
    """Return why this program is asked to stop: pause, cancel, preempt or budget; an orphan is preempted."""
    path = folder / STOP_FILE
    return (path.read_text(encoding="utf-8") if path.is_file() else "") or "preempt"


def faultpoint(name: str) -> None:
    """Die by SIGKILL here if `TRAINYARD_FAULT` names this point (`name#3`: at its third pass).

    For tests of what survives a crash; without the variable it is a lookup.
    """
    fault = os.environ.get(FAULT_VARIABLE)
    if fault is None or fault.partition("#")[0] != name:
        return
    _passes[name] += 1
    if _passes[name] == int(fault.partition("#")[2] or 1):
        os.kill(os.getpid(), signal.SIGKILL)


def reserve_error(folder: Path) -> None:
    """Reserve the space of `error.json`, so that a program can report a full disk on the full disk."""
    descriptor = os.open(folder / ERROR_RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, bytes(RESERVED_BYTES))
    finally:
        os.close(descriptor)


def write_error(folder: Path, error: TrainyardError) -> None:
    """Leave `error.json` {kind, code, what, why, do} so that a reader sees all of it or nothing.

    Written over the bytes that `reserve_error` has taken, if it did.
    """
    reserve = folder / ERROR_RESERVE
    text = orjson.dumps({"kind": type(error).__name__, **error.as_dict()})
    descriptor = os.open(reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if len(text) < RESERVED_BYTES:
            text = text.ljust(RESERVED_BYTES)
        os.pwrite(descriptor, text, 0)
    finally:
        os.close(descriptor)
    reserve.rename(folder / ERROR_FILE)


def log_traceback() -> None:
    """Write the traceback to the log; on a full disk there is only `error.json`."""
    with suppress(OSError):
        traceback.print_exc()


def crash_error(error: BaseException) -> TrainyardError:
    """Return an unexpected exception as a readable error; the traceback is in the log."""
    return TrainyardError(**crash(error))


def alive(process: psutil.Process) -> bool:
    """Return whether a process is running; a zombie, which only waits for its parent to read its exit code, is not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL each and wait up to a second. Nothing is reaped here: exit codes belong to the parents."""
    processes = list(processes)
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # it has already ended, as wanted
    deadline = time.monotonic() + 1
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def end_descendants() -> None:
    """Kill every descendant of this process. As a sub-reaper it has inherited even those that detached themselves."""
    for _ in range(MOST_KILLS):
        living = [process for process in psutil.Process().children(recursive=True) if alive(process)]
        if not living:
            return
        kill(living)


@contextmanager
def child_contract(folder: Path) -> Iterator[Events]:
    """Fulfil the contract of a supervised program; leaves by SystemExit with the contract's exit code.

    Writes `error.json` for every exception but `Stopped`; the traceback goes to stderr, which is the log file.
    """
    parent = tie_to_parent()
    silence_missing_kernel()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    events = Events(folder / EVENTS_FILE, parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, events.request_stop)
    try:
        reserve_error(folder)
        run = os.environ.get(RUN_VARIABLE)
        with span("child", folder=folder.name) as traceparent:
            facts = {"run": run, "trace": trace_id(traceparent)} if run else {}
            events.emit("started", pid=os.getpid(), **facts)
            yield events
        events.emit("done")
        (folder / ERROR_RESERVE).unlink(missing_ok=True)
    except Stopped as stopped:
        (folder / ERROR_RESERVE).unlink(missing_ok=True)  # which also makes room for the event
        try:
            events.emit("stopped", reason=stopped.reason, **stopped.fields)
        except TrainyardError:
            log_traceback()  # its checkpoint is kept, which the exit code says
        raise SystemExit(STOPPED_EXIT) from None
    except TrainyardError as error:
        write_error(folder, error)
        log_traceback()
        raise SystemExit(FAILED_EXIT) from None
    except Exception as error:
        write_error(folder, crash_error(error))
        log_traceback()
        raise SystemExit(FAILED_EXIT) from None
    finally:
        end_descendants()
        events.close()
        send_spans()
