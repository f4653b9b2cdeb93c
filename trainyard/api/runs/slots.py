"""The right to compute on devices of this host: a lock of the machine, a limit of the server, and an empty device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectHTTPStatusError

from trainyard.api.runs.server import client, ensure_limit, limit_name
from trainyard.backends.results import TrainingStopped
from trainyard.compute.gpus import device_numbers, read_gpus
from trainyard.compute.lease import first_lock, holder, occupants, wait_until_empty
from trainyard.compute.services import own_services
from trainyard.compute.supervise import Wanted, always_run
from trainyard.errors import Conflict, Unavailable
from trainyard.settings import Settings

LIMIT_WAIT_S = 10.0
"""One wait for the server's limit; between two, a pause is noticed."""
SERVER_PATIENCE_S = 600.0
"""How long a node that is about to start waits for a server that is away."""

logger = logging.getLogger(__name__)


def lock_of(settings: Settings, device: int) -> Path:
    return settings.services / f"slot-{device}.lock"


@dataclass(frozen=True)
class Asker:
    """Who wants devices, and whether it still does."""

    settings: Settings
    run: str
    wanted: Callable[[], Wanted]

    def give_up(self) -> bool:
        return self.wanted() is not Wanted.RUN


@contextmanager
def gpu_slots(
    settings: Settings,
    count: int = 1,
    *,
    run: str = "",
    among: Sequence[int] | None = None,
    turn: Path | None = None,
    wanted: Callable[[], Wanted] = always_run,
) -> Iterator[tuple[int, ...]]:
    """The right to compute on `count` devices of this host, by default among all: one training at a time on each.

    A local file lock is taken first (its holder's death frees it, and the next one gets it within 0.2 s), then the
    server's limit with a lease, which other hosts and Prefect's pages see; then nobody else may be found on the
    device. A server that is away for a minute does not end a training of hours: a lease that cannot be renewed or
    given back is only logged, and runs out by itself.

    Devices are taken in ascending order, each the first free one of those that leave enough above it. So whoever
    waits, waits for a device above all that it holds, and nobody waits in a ring. `turn` is a lock to wait for before
    that, without any device: of two that would do the same, the second then finds it done.

    Yields their numbers; fewer than `count` where the host has fewer. Raises `TrainingStopped` when the run is paused
    or cancelled while it waits, and `Conflict` (`E-DEVICE-OCCUPIED`).
    """
    asker = Asker(settings, run, wanted)
    numbers = sorted(among if among is not None else device_numbers())
    taken: list[int] = []
    with ExitStack() as held:
        try:
            if turn is not None:
                held.enter_context(first_lock(lambda: [turn], run=run, give_up=asker.give_up))
            for left in range(min(count, len(numbers)), 0, -1):
                above = [number for number in numbers if not taken or number > taken[-1]]
                taken.append(take_one(held, above[: len(above) - left + 1], asker))
        except Conflict:
            if not asker.give_up():
                raise
            raise TrainingStopped(
                "The run was stopped while it waited for the device.",
                why=wanted().value,
                do="Resume it: nothing was lost.",
            ) from None
        yield tuple(taken)


@contextmanager
def gpu_slot(
    settings: Settings, *, run: str = "", device: int | None = None, wanted: Callable[[], Wanted] = always_run
) -> Iterator[None]:
    """`gpu_slots` of one device: the one that is named, else this host's first."""
    named = device_numbers()[0] if device is None else device
    with gpu_slots(settings, run=run, among=(named,), wanted=wanted):
        yield


def take_one(held: ExitStack, numbers: Sequence[int], asker: Asker) -> int:
    """Wait for one of these devices. Raises `Conflict` when the asker gives up, or others compute on the device."""
    settings = asker.settings

    def eligible() -> list[Path]:
        readings, ours = read_gpus(), own_services(settings)
        empty = [one for one in numbers if len(numbers) == 1 or not occupants(one, readings, ours)]
        return [lock_of(settings, one) for one in empty or numbers]

    lock = held.enter_context(first_lock(eligible, run=asker.run, give_up=asker.give_up))
    number = next(one for one in numbers if lock_of(settings, one) == lock)
    hold_limit(held, limit_name(number), settings.lease_duration_s, asker.give_up)
    wait_until_empty(number, ours=lambda: own_services(settings), give_up=asker.give_up)
    return number


def hold_limit(held: ExitStack, name: str, lease_s: float, give_up: Callable[[], bool]) -> None:
    """Take a slot of the server's limit, waiting for a holder however long it takes, and for a server for minutes."""
    patience = time.monotonic() + SERVER_PATIENCE_S
    while True:
        try:
            with client() as prefect:
                ensure_limit(prefect, name)
            slot = concurrency(
                name,
                strict=True,
                lease_duration=lease_s,
                timeout_seconds=LIMIT_WAIT_S,
                raise_on_lease_renewal_failure=False,
            )
            held.enter_context(given_back(slot))
            return
        except TimeoutError:
            patience = time.monotonic() + SERVER_PATIENCE_S  # the server answers: somebody has the slot
        except (Unavailable, httpx.HTTPError, PrefectHTTPStatusError, ConcurrencySlotAcquisitionError) as error:
            if time.monotonic() > patience:
                raise
            logger.warning("The device's limit cannot be asked for, trying again: %s", error)
            time.sleep(1.0)
        if give_up():
            raise Conflict("The run was stopped while it waited for the device's limit.", code="E-DEVICE-BUSY")


def free_unheld_slots(settings: Settings) -> list[int]:
    """Empty the limits of devices whose slot nobody on this host holds, and return those devices.

    Their leases should have freed them. A server that kept its leases in memory and was killed has forgotten them, and
    would keep every later run waiting. For the server of this home, while no run of this home works.
    """
    freed = []
    with client() as prefect:
        for device in device_numbers():
            if holder(lock_of(settings, device)) is not None:
                continue
            name = limit_name(device)
            ensure_limit(prefect, name)
            if prefect.read_global_concurrency_limit_by_name(name).active_slots:
                prefect.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=0))
                freed.append(device)
    return freed


@contextmanager
def given_back(slot: AbstractContextManager[None]) -> Iterator[None]:
    """The slot; that it cannot be given back is no failure of what was done in it."""
    taken = ExitStack()
    taken.enter_context(slot)
    try:
        yield
    finally:
        try:
            taken.close()
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            logger.warning("The device's limit could not be given back; its lease runs out by itself: %s", error)
