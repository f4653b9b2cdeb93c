"""The queue in front of locks: who waits, since when, for which lock, and who is next.

A waiter keeps a ticket, a file under `flock(2)` in `services/queue` whose name begins with the time at which it began
to wait. The kernel frees a ticket when its process is gone, however it ended: such a ticket counts for nothing and is
removed by the next one who looks. The order of the names is the order of the queue.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from trainyard.settings import Settings
from trainyard.stores.processes import Start, process_start

DEVICE, TURN, LIMIT = "device", "turn", "limit"
"""Kinds of a wait: the slot of a device, an equal training, the server's limit of a device."""
SUFFIX = ".ticket"


@dataclass(frozen=True)
class Waiter:
    """A process that waits."""

    ticket: str
    """Name of its file; the smallest one is the first in the queue."""
    run: str
    pid: int
    create_time: Start
    since: float
    """Seconds of the epoch."""
    reason: str
    locks: tuple[str, ...]
    """Paths of the locks of which it takes the first free one."""


def queue_folder(settings: Settings) -> Path:
    """Return the folder of the tickets."""
    return settings.services / "queue"


@contextmanager
def take_ticket(settings: Settings, locks: Sequence[Path], *, run: str = "", reason: str = DEVICE) -> Iterator[Waiter]:
    """Wait in the queue for the first of these locks that is free while the block runs."""
    folder, now = queue_folder(settings), time.time()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns():020d}-{os.getpid()}-{threading.get_ident()}"
    paths = tuple(str(path) for path in locks)
    waiter = Waiter(f"{name}{SUFFIX}", run, os.getpid(), process_start(), now, reason, paths)
    hidden, path = folder / f".{name}", folder / waiter.ticket
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.pwrite(descriptor, orjson.dumps(asdict(waiter)), 0)
        hidden.rename(path)  # a ticket is there once it is locked and complete
        yield waiter
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def list_waiters(settings: Settings) -> list[Waiter]:
    """Return the processes that wait now, the first in the queue first."""
    waiters = []
    for path in sorted(queue_folder(settings).glob(f"*{SUFFIX}")):
        with suppress(FileNotFoundError, orjson.JSONDecodeError, TypeError):
            if is_kept(path):
                fields = orjson.loads(path.read_bytes())
                waiters.append(Waiter(**{**fields, "locks": tuple(fields["locks"])}))
    return waiters


def is_kept(path: Path) -> bool:
    """Return whether a process keeps a ticket; remove one that no process keeps. Raises `FileNotFoundError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)


def list_earlier_waiters(waiter: Waiter, waiters: Sequence[Waiter]) -> list[Waiter]:
    """Return the waiters that are earlier in the queue for one of the same locks."""
    return [other for other in waiters if other.ticket < waiter.ticket and set(other.locks) & set(waiter.locks)]


def drop_promised(locks: Sequence[Path], before: Collection[Waiter]) -> list[Path]:
    """Return the locks that no earlier entry of the queue waits for."""
    promised = {lock for waiter in before for lock in waiter.locks}
    return [lock for lock in locks if str(lock) not in promised]
