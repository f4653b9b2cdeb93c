"""Who has a device: a file lock that the *child* holds, so that the kernel frees it when the child is gone.

`flock(2)` needs no server and cannot be forgotten by a crash. The text in the file only explains; it says who holds
the lock (pid, start time, run), for the message that the next one gets.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from trainyard.compute.gpus import GpuReadings, read_gpus
from trainyard.errors import Conflict
from trainyard.stores.processes import Start, process_start

POLL_S = 0.2
WORK_LOCK = "work.lock"
LOOK_EVERY_S = 1.0
FOREIGN_MEMORY_MB = 2048
"""Used memory that means somebody is there whose process cannot be seen (another container); a driver takes less."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    create_time: Start
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
        mine = Holder(os.getpid(), process_start(), run)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(asdict(mine)), 0)
        yield mine
    finally:
        os.close(descriptor)  # which frees the lock


@contextmanager
def first_lock(
    paths: Callable[[], Sequence[Path]], *, run: str = "", give_up: Callable[[], bool] = never
) -> Iterator[Path]:
    """Hold the first of these locks that is free; which ones count is asked anew at every look.

    Waits until `give_up()` says so. Raises `Conflict` (`E-DEVICE-BUSY`) then.
    """
    with ExitStack() as held:
        while True:
            asked = paths()
            for path in asked:
                try:
                    held.enter_context(device_lock(path, run=run))
                except Conflict:
                    if give_up():
                        raise
                    continue
                yield path
                return
            time.sleep(POLL_S if len(asked) == 1 else LOOK_EVERY_S)


@contextmanager
def device_locks(
    folder: Path,
    kind: str,
    devices: Sequence[int],
    *,
    work: Path | None = None,
    run: str = "",
    wait_s: float = 0.0,
    give_up: Callable[[], bool] = never,
) -> Iterator[None]:
    """Hold the lock of each device of a job (`cuda-0.lock`), in ascending order: nobody waits in a ring.

    Before them that of its work folder: an orphan on another device may still save there.
    """
    with ExitStack() as held:
        if work is not None:
            held.enter_context(device_lock(work / WORK_LOCK, run=run, wait_s=wait_s, give_up=give_up))
        for device in sorted(devices):
            lock = folder / f"{kind}-{device}.lock"
            held.enter_context(device_lock(lock, run=run, wait_s=wait_s, give_up=give_up))
        yield


def wait_until_empty(
    index: int,
    *,
    read: Callable[[], GpuReadings] = read_gpus,
    ours: Callable[[], frozenset[int]] = frozenset,
    wait_s: float = 60.0,
    give_up: Callable[[], bool] = never,
) -> None:
    """Return when nobody but `ours()` (pids of our own services) computes on the GPU; at once without such a GPU.

    A lock says who may use a device, this says who does: a child whose parent died saves for a while, and other
    programs know nothing of our lock. Raises `Conflict` (`E-DEVICE-OCCUPIED`) after `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    while found := occupants(index, read(), ours()):
        if time.monotonic() >= deadline or give_up():
            raise Conflict(
                f"The device cuda:{index} is in use by {found}.",
                why="Its memory would not suffice for both, and a training would end in the middle.",
                do="End that program, or choose another device by CUDA_VISIBLE_DEVICES.",
                code="E-DEVICE-OCCUPIED",
            )
        time.sleep(LOOK_EVERY_S)


def occupants(index: int, readings: GpuReadings, ours: frozenset[int]) -> str:
    """Who computes on a GPU, in words; empty if nobody does, or if there is no such GPU."""
    gpu = next((gpu for gpu in readings.gpus if gpu.index == index), None)
    if gpu is None:
        return ""
    others = [pid for pid in gpu.processes if pid not in ours and pid != os.getpid()]
    if others:
        return "process " + ", ".join(map(str, others))
    unseen = not gpu.processes and gpu.memory_used_mb > FOREIGN_MEMORY_MB
    return f"somebody who holds {gpu.memory_used_mb:,} MB of its memory" if unseen else ""
