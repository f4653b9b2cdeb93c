"""A lease of the device for a night, waited for no longer than a night."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import Patience, claim_devices, holder, slot_lock
from trainyard.errors import Conflict
from trainyard.prefect_api.server import limit_name
from trainyard.prefect_api.slots import device_limit
from trainyard.settings import Settings


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
