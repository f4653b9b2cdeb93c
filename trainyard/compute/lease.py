"""Who has a device: a file lock that the *child* holds, so that the kernel frees it when the child is gone.

`flock(2)` needs no server and cannot be forgotten by a crash. The text in the file only explains; it says who holds
the lock (pid, start time, run), for the message that the next one gets.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil

from trainyard.errors import Conflict

POLL_S = 0.2


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    create_time: float
    run: str

    def __str__(self) -> str:
        return f"process {self.pid} of run {self.run or 'without a name'}"


def holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when nobody does (a text left by a dead process counts for nothing)."""
    if not path.exists():
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if try_lock(descriptor):
            return None
        return read_holder(path)
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> Holder:
    try:
        return Holder(**orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError):
        return Holder(0, 0.0, "")  # locked this instant, its text is not written yet


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def never() -> bool:
    return False


@contextmanager
def device_lock(
    path: Path, *, run: str = "", wait_s: float = 0.0, give_up: Callable[[], bool] = never
) -> Iterator[Holder]:
    """Hold the lock at `path` while the block runs.

    Waits up to `wait_s` seconds, or until `give_up()` says so, for a holder that is on its way out (an orphan that
    still saves). Raises `Conflict` (`E-DEVICE-BUSY`) naming the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while not try_lock(descriptor):
            if time.monotonic() >= deadline or give_up():
                raise Conflict(
                    f"{path.stem} is in use by {read_holder(path)}.",
                    why="One training at a time may use a device.",
                    do="Wait for that run, or cancel it.",
                    code="E-DEVICE-BUSY",
                )
            time.sleep(POLL_S)
        mine = Holder(os.getpid(), psutil.Process().create_time(), run)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(asdict(mine)), 0)
        yield mine
    finally:
        os.close(descriptor)  # which frees the lock
