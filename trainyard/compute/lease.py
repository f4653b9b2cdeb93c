"""Locks of devices: every lock before a computation, in the one order in which all of them are taken.

    step      keeps apart                                               where
    ------------------------------------------------------------------------------------------------------------------
    parent: a flow's node, a night, `TrainingManager`
    0 queue   two nights                                                Prefect's limit of the deployment (prefect.yaml)
    1 turn    two equal trainings: the second waits without a device    runs/training/<digest>.turn
    2 slot    two computations of this home on one device               services/slot-<n>.lock
    3 limit   those of other homes and hosts                            Prefect's limit device:<host>:<n>, with a lease
    4 look    programs that know none of these locks                    NVML: no process but Trainyard's model server
    5 job     one training that was started on two devices              services/works/<digest>.lock
    child: the process that computes
    6 work    a dying child that still saves in the work folder         <work folder>/work.lock
    7 device  a dying child that still computes on the device           services/devices/<kind>-<n>.lock

    a trainer node               1 2 3 4 5 6 7     waits until the run is paused or canceled
    an evaluator, a vLLM node      2 3 4           waits likewise; a generator also through a pause
    a night of a server          0 2 3 4           waits as long as the night's window; its trainings add 5 6 7
    `trainyard nightly run`        2   4           does not wait; its trainings add 5 6 7
    `TrainingManager`              2   4 5 6 7     waits until the job is paused or canceled

`claim_devices` takes the steps 1 to 4, `job_lock` is 5, and `device_locks` takes 6 and 7. Prefect may not be imported
here, so step 3 is passed in (`prefect_api/slots.py`). Each step has its reason: a lock of the parent alone would be
free while a child whose parent was killed still saves; a lock of the child alone would let the second run load its data
first and fail then. Multiple devices are taken in ascending order at each step, so there is no deadlock.

A lock is a file under `flock(2)`: it needs no server, and the kernel frees it when its holder is gone, however it
ended. The text in the file (pid, start, run) only names the holder in the message for the next one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path

import orjson

from trainyard.callbacks import ignore, never
from trainyard.compute.gpus import GpuReadings, device_numbers, read_gpus
from trainyard.compute.queue import LIMIT, TURN, Waiter, drop_promised, list_earlier_waiters, list_waiters, take_ticket
from trainyard.compute.services import list_own_services
from trainyard.errors import Conflict
from trainyard.settings import Settings
from trainyard.stores.processes import Start, process_start

POLL_S = 0.2
WORK_LOCK = "work.lock"
LOOK_EVERY_S = 1.0
OCCUPIED_MEMORY_MB = 2048
"""Used memory that means a process that cannot be seen (of another container); a driver takes less."""


GiveUp = Callable[[], bool]
Limit = Callable[[int, GiveUp], AbstractContextManager[None]]
"""Step 3: device number, whether to stop waiting -> the server's limit of the device."""


@dataclass(frozen=True)
class Holder:
    """The process that has a lock."""

    pid: int
    create_time: Start
    run: str
    since: float = 0.0
    """When it took the lock, in seconds of the epoch; 0 where that is not known."""

    def __str__(self) -> str:
        return f"process {self.pid} of run {self.run or 'without a name'}"


def slot_lock(settings: Settings, device: int) -> Path:
    """Return the file of step 2."""
    return settings.services / f"slot-{device}.lock"


def device_folder(settings: Settings) -> Path:
    """Return the folder of the files of step 7."""
    return settings.services / "devices"


def turn_lock(work: Path) -> Path:
    """Return the file of step 1 of a training, by its work folder."""
    return work.with_suffix(".turn")


def holder(path: Path) -> Holder | None:
    """Return the process that has the lock now; None if no process has (a text left by a dead one is ignored)."""
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


@contextmanager
def device_lock(path: Path, *, run: str = "", wait_s: float = 0.0, give_up: GiveUp = never) -> Iterator[Holder]:
    """Keep the lock at `path` while the block runs.

    Waits up to `wait_s` seconds, or until `give_up()` returns True, for a holder that is ending (an orphan that still
    saves). Raises `Conflict` (`E-DEVICE-BUSY`) naming the holder.
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
        holder = Holder(os.getpid(), process_start(), run, time.time())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(asdict(holder)), 0)
        yield holder
    finally:
        os.close(descriptor)  # which frees the lock


@contextmanager
def first_lock(
    paths: Callable[[], Sequence[Path]],
    *,
    run: str = "",
    give_up: GiveUp = never,
    on_wait: Callable[[], None] = ignore,
) -> Iterator[Path]:
    """Keep the first of these locks that is free while the block runs; `paths` is called again at every attempt.

    Waits until `give_up()` returns True, then raises `Conflict` (`E-DEVICE-BUSY`). Calls `on_wait` at each attempt
    that found none free.
    """
    with ExitStack() as locks:
        while True:
            candidates = paths()
            for path in candidates:
                try:
                    locks.enter_context(device_lock(path, run=run))
                except Conflict:
                    if give_up():
                        raise
                    continue
                yield path
                return
            if not candidates and give_up():
                raise Conflict(
                    "Every device is promised to a run that waits longer.", do="Wait for that run, or cancel it.",
                    code="E-DEVICE-BUSY",
                )  # fmt: skip
            on_wait()
            time.sleep(POLL_S if len(candidates) <= 1 else LOOK_EVERY_S)


@dataclass(frozen=True)
class Wait:
    """Resource that a process waits for."""

    reason: str
    """`queue.DEVICE`, `TURN` or `LIMIT`."""
    since: float
    holder: Holder | None
    """Holder of the lock; None where it is not known here."""
    position: int
    """Its place in the queue: 1 is the next."""


OnWait = Callable[[Wait], None]


@dataclass(frozen=True)
class Patience:
    """Time limit of a claim, and what it reports meanwhile."""

    wait_s: float = inf
    give_up: GiveUp = never
    on_wait: OnWait = ignore
    """Called whenever what it waits for has changed."""


FOREVER = Patience()


@contextmanager
def claim_devices(
    settings: Settings,
    count: int = 1,
    *,
    run: str = "",
    among: Sequence[int] | None = None,
    turn: Path | None = None,
    limit: Limit = lambda _device, _give_up: nullcontext(),
    patience: Patience = FOREVER,
) -> Iterator[tuple[int, ...]]:
    """Claim `count` of these devices, by default of this host's: steps 1 to 4.

    Each device is the first free one that leaves enough devices with higher numbers, so the caller only waits for a
    device above those that it has. Yields their numbers; fewer than `count` if there are fewer.

    Raises `Conflict`: `E-DEVICE-BUSY` naming the holder when `patience` ends,
    `E-DEVICE-OCCUPIED` when another program computes on the device.
    """
    deadline = time.monotonic() + patience.wait_s

    def late() -> bool:
        return patience.give_up() or time.monotonic() >= deadline

    numbers = sorted(among if among is not None else device_numbers())
    claimed: list[int] = []
    with ExitStack() as locks:
        if turn is not None:
            with take_ticket(settings, [turn], run=run, reason=TURN) as ticket:
                note = WaitReport(settings, ticket, patience.on_wait)
                locks.enter_context(first_lock(lambda: [turn], run=run, give_up=late, on_wait=note))
        for left in range(min(count, len(numbers)), 0, -1):
            above = [number for number in numbers if not claimed or number > claimed[-1]]
            eligible = above[: len(above) - left + 1]
            with take_ticket(settings, [slot_lock(settings, candidate) for candidate in eligible], run=run) as ticket:
                note, free = WaitReport(settings, ticket, patience.on_wait), partial(slots, settings, eligible, ticket)
                slot = locks.enter_context(first_lock(free, run=run, give_up=late, on_wait=note))
            number = next(candidate for candidate in eligible if slot_lock(settings, candidate) == slot)
            with take_ticket(settings, (), run=run, reason=LIMIT):
                locks.enter_context(limit(number, late))
            wait_until_empty(number, own_pids=lambda: list_own_services(settings), give_up=patience.give_up)
            claimed.append(number)
        yield tuple(claimed)


def find_wait(waiter: Waiter, waiters: Sequence[Waiter]) -> Wait:
    """Return what one of these waiters waits for."""
    holders = (holder(Path(lock)) for lock in waiter.locks)
    position = 1 + len(list_earlier_waiters(waiter, waiters))
    return Wait(waiter.reason, waiter.since, next((owner for owner in holders if owner is not None), None), position)


class WaitReport:
    """Calls `on_wait` whenever what a waiter waits for has changed."""

    def __init__(self, settings: Settings, waiter: Waiter, on_wait: OnWait) -> None:
        self.settings, self.waiter, self.on_wait = settings, waiter, on_wait
        self.last: Wait | None = None

    def __call__(self) -> None:
        wait = find_wait(self.waiter, list_waiters(self.settings))
        if wait != self.last:
            self.last = wait
            self.on_wait(wait)


def slots(settings: Settings, numbers: Sequence[int], waiter: Waiter) -> list[Path]:
    """Return the slot files of the devices on which no process computes, or of all devices if there are none, that are
    not promised to an earlier waiter."""
    free = list(numbers)
    if len(numbers) > 1:
        readings, own_pids = read_gpus(), list_own_services(settings)
        free = [number for number in numbers if not occupants(number, readings, own_pids)] or free
    before = list_earlier_waiters(waiter, list_waiters(settings))
    return drop_promised([slot_lock(settings, number) for number in free], before)


def job_lock(settings: Settings, work: Path, *, run: str, give_up: GiveUp) -> AbstractContextManager[Holder]:
    """Step 5: the work folder of a training for one process at a time. Raises `Conflict` (`E-DEVICE-BUSY`)."""
    return device_lock(settings.services / "works" / f"{work.name}.lock", run=run, wait_s=inf, give_up=give_up)


@contextmanager
def device_locks(
    folder: Path,
    kind: str,
    devices: Sequence[int],
    *,
    work: Path | None = None,
    run: str = "",
    wait_s: float = 0.0,
    give_up: GiveUp = never,
) -> Iterator[None]:
    """Steps 6 and 7: the lock of the work folder, then that of each device of a job (`cuda-0.lock`), ascending.

    Raises `Conflict` (`E-DEVICE-BUSY`).
    """
    with ExitStack() as locks:
        if work is not None:
            locks.enter_context(device_lock(work / WORK_LOCK, run=run, wait_s=wait_s, give_up=give_up))
        for device in sorted(devices):
            lock = folder / f"{kind}-{device}.lock"
            locks.enter_context(device_lock(lock, run=run, wait_s=wait_s, give_up=give_up))
        yield


def wait_until_empty(
    index: int,
    *,
    read: Callable[[], GpuReadings] = read_gpus,
    own_pids: Callable[[], frozenset[int]] = frozenset,
    wait_s: float = 60.0,
    give_up: GiveUp = never,
) -> None:
    """Return when only `ours()` (pids of Trainyard's services) compute on the GPU; at once without such a GPU.

    A lock says which process may use a device, this checks which one does: a child whose parent died saves for a
    while, and other programs ignore the lock. Raises `Conflict` (`E-DEVICE-OCCUPIED`) after `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    while occupant := occupants(index, read(), own_pids()):
        if time.monotonic() >= deadline or give_up():
            raise Conflict(
                f"The device cuda:{index} is in use by {occupant}.",
                why="Its memory would not suffice for both, and a training would end in the middle.",
                do="End that program, or choose another device by CUDA_VISIBLE_DEVICES.",
                code="E-DEVICE-OCCUPIED",
            )
        time.sleep(LOOK_EVERY_S)


def occupants(index: int, readings: GpuReadings, own_pids: frozenset[int]) -> str:
    """Return which processes compute on a GPU, in words; empty if none does, or if there is no such GPU."""
    gpu = next((gpu for gpu in readings.gpus if gpu.index == index), None)
    if gpu is None:
        return ""
    pids = [pid for pid in gpu.processes if pid not in own_pids and pid != os.getpid()]
    if pids:
        return "process " + ", ".join(map(str, pids))
    unseen = not gpu.processes and gpu.memory_used_mb > OCCUPIED_MEMORY_MB
    return f"an unknown process that uses {gpu.memory_used_mb:,} MB of its memory" if unseen else ""
