"""Slots of this host's devices, as runs of a Prefect server claim them.

A lease of the device for a night, waited for no longer than a night.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectHTTPStatusError

from trainyard.backends.results import enter_unless_stopped
from trainyard.callbacks import ignore
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import GiveUp, OnWait, Patience, claim_devices, holder, slot_lock
from trainyard.compute.supervise import DesiredState, keep_running
from trainyard.errors import Conflict, Unavailable
from trainyard.prefect_api.server import client, ensure_limit, limit_name
from trainyard.settings import Settings

LIMIT_WAIT_S = 10.0
"""One wait for the server's limit; between two, a pause is noticed."""
SERVER_PATIENCE_S = 600.0
"""How long a node that is about to start waits for a server that is away."""

logger = logging.getLogger(__name__)


def device_slots(
    settings: Settings,
    count: int = 1,
    *,
    run: str = "",
    among: Sequence[int] | None = None,
    turn: Path | None = None,
    read_state: Callable[[], DesiredState] = keep_running,
    on_wait: OnWait = ignore,
) -> AbstractContextManager[tuple[int, ...]]:
    """`claim_devices` with the limit of the server, for a run that may be paused or canceled while it waits.

    Raises `TrainingStopped` then, and `Conflict` (`E-DEVICE-OCCUPIED`).
    """
    claim = claim_devices(
        settings, count, run=run, among=among, turn=turn, limit=partial(device_limit, settings),
        patience=Patience(give_up=lambda: read_state() is not DesiredState.RUN, on_wait=on_wait),
    )  # fmt: skip
    return enter_unless_stopped(claim, read_state, "The run was stopped while it waited for the device.")


@contextmanager
def device_limit(settings: Settings, device: int, give_up: GiveUp) -> Iterator[None]:
    """A slot of the server's limit of a device, with a lease: step 3 of `compute/lease.py`.

    Waits for another run without a limit, and for a server for minutes. A server that is away for a minute does not end
    a training of hours: a lease that cannot be renewed or given back is only logged, and expires. In a container, whose
    devices nobody else has, there is no limit (`device_limits`).
    """
    if not settings.device_limits:
        yield
        return
    name, patience = limit_name(device), time.monotonic() + SERVER_PATIENCE_S
    with ExitStack() as leases:
        while True:
            try:
                with client() as prefect:
                    ensure_limit(prefect, name)
                slot = concurrency(
                    name,
                    strict=True,
                    lease_duration=settings.lease_duration_s,
                    timeout_seconds=LIMIT_WAIT_S,
                    raise_on_lease_renewal_failure=False,
                )
                leases.enter_context(give_back(slot))
                break
            except TimeoutError:
                patience = time.monotonic() + SERVER_PATIENCE_S  # the server answers: somebody has the slot
            except (Unavailable, httpx.HTTPError, PrefectHTTPStatusError, ConcurrencySlotAcquisitionError) as error:
                if time.monotonic() > patience:
                    raise
                logger.warning("The device's limit cannot be read, trying again: %s", error)
                time.sleep(1.0)
            if give_up():
                raise Conflict("The run was stopped while it waited for the device's limit.", code="E-DEVICE-BUSY")
        yield


def free_unheld_slots(settings: Settings) -> list[int]:
    """Empty the limits of devices whose slot no process on this host has locked, and return those devices.

    Their leases should have freed them. A server that kept its leases in memory and was killed has forgotten them, and
    would keep every later run waiting. For the server of this home, while no run of this home is running.
    """
    freed = []
    with client() as prefect:
        for device in device_numbers():
            if holder(slot_lock(settings, device)) is not None:
                continue
            name = limit_name(device)
            ensure_limit(prefect, name)
            if prefect.read_global_concurrency_limit_by_name(name).active_slots:
                prefect.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=0))
                freed.append(device)
    return freed


@contextmanager
def give_back(slot: AbstractContextManager[None]) -> Iterator[None]:
    """Take the slot; a failure to give it back does not fail the work that was done in it."""
    leases = ExitStack()
    leases.enter_context(slot)
    try:
        yield
    finally:
        try:
            leases.close()
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            logger.warning("The device's limit could not be given back; its lease expires: %s", error)


@contextmanager
def night_slot(settings: Settings, *, run: str, window_s: float) -> Iterator[float]:
    """Lock the device for a night; yield the monotonic second at which the waiting, and so the night's window, began.

    Raises `Conflict`: `E-DEVICE-BUSY` naming who has the device when the whole window was waited in vain,
    `E-DEVICE-OCCUPIED` when a program computes on it without a lock.
    """
    began = time.monotonic()
    first, limit = device_numbers()[:1], partial(device_limit, settings)
    with ExitStack() as leases:
        try:
            patience = Patience(wait_s=window_s)
            leases.enter_context(claim_devices(settings, run=run, among=first, limit=limit, patience=patience))
        except Conflict as error:
            if error.code != "E-DEVICE-BUSY":
                raise
            device = device_numbers()[0]
            slot_holder, name = holder(slot_lock(settings, device)), limit_name(device)
            raise Conflict(
                f"The night did not begin: device {device} was in use for its whole window of {window_s:,.0f} s.",
                why=f"It is in use by {slot_holder}."
                if slot_holder
                else f"The server's limit {name} is taken by another host.",
                do="Wait for that run or cancel it, then `trainyard nightly run`; the documents and markers wait.",
                code="E-DEVICE-BUSY",
            ) from None
        yield began
