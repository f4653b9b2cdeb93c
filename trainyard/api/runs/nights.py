"""Prefect's objects for nights: a lease of the device, waited for no longer than a night, and two automations.

The automations write an event that an operator's own automation, mail block or chat block can react to; they change no
run. The server notices a failed night. It cannot notice that none succeeded by six in the morning: its proactive
triggers count hours since an event, not to a time of day in a zone, and forget when a server is restarted. So the
watchdog checks at six (`night_watch.py`) and sends the event that the second automation waits for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial

from prefect.automations import Automation
from prefect.events.actions import DoNothing
from prefect.events.schemas.automations import EventTrigger, Posture

from trainyard.api.runs.server import client, limit_name
from trainyard.api.runs.slots import device_limit
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import claim_devices, holder, slot_lock
from trainyard.errors import Conflict
from trainyard.settings import Settings

FAILED = "trainyard: a night failed"
MISSING = "trainyard: no night succeeded by six"
OUTDATED = frozenset({"trainyard: no night succeeded for a day"})
"""Automations of earlier releases."""
NO_SUCCESS = "trainyard.night.missing"
"""The event that the watchdog sends."""
RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
NIGHTS = {"prefect.resource.role": "flow", "prefect.resource.name": "nightly"}


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
            leases.enter_context(claim_devices(settings, run=run, among=first, limit=limit, wait_s=window_s))
        except Conflict as error:
            if error.code != "E-DEVICE-BUSY":
                raise
            raise waited_in_vain(settings, window_s) from None
        yield began


def waited_in_vain(settings: Settings, window_s: float) -> Conflict:
    device = device_numbers()[0]
    who = holder(slot_lock(settings, device))
    return Conflict(
        f"The night did not begin: device {device} was in use for its whole window of {window_s:,.0f} s.",
        why=f"It is in use by {who}." if who else f"The server's limit {limit_name(device)} is taken by another host.",
        do="Wait for that run or cancel it, then `trainyard nightly run`; the documents and markers wait.",
        code="E-DEVICE-BUSY",
    )


def night_automations() -> list[Automation]:
    """What `bootstrap` writes to the server: they fire in Prefect's event feed until an action is chosen there."""
    failed = {f"prefect.flow-run.{word}" for word in ("Failed", "Crashed", "TimedOut")}
    at_once = {"posture": Posture.Reactive, "threshold": 1, "within": timedelta(seconds=0)}
    return [
        Automation(
            name=FAILED,
            description="Read the run's report; it ends with the next command.",
            trigger=EventTrigger(expect=failed, match=RUNS, match_related=NIGHTS, **at_once),
            actions=[DoNothing()],
        ),
        Automation(
            name=MISSING,
            description="The watchdog looked at six in the zone of the schedule: no night had succeeded.",
            trigger=EventTrigger(expect={NO_SUCCESS}, **at_once),
            actions=[DoNothing()],
        ),
    ]


def ensure_night_automations() -> None:
    """Write those that are not there, remove outdated ones. Repeating changes nothing."""
    with client() as prefect:
        known = prefect.request("POST", "/automations/filter", json={}).json()
        for one in known:
            if one["name"] in OUTDATED:
                prefect.request("DELETE", "/automations/{id}", path_params={"id": one["id"]})
        there = {automation["name"] for automation in known}
        for one in night_automations():
            if one.name not in there:
                prefect.request("POST", "/automations/", json=one.model_dump(mode="json", exclude={"id"}))
