"""Waits of running jobs: for the device, who has it since when, and how many are before them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from trainyard.app.responses import Response
from trainyard.app.run_records import read_chain
from trainyard.backends.sessions.records import list_records, read_status
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_end
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import Holder, Wait, find_wait, holder, slot_lock
from trainyard.compute.queue import DEVICE, LIMIT, TURN, Waiter, list_waiters
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.jobs import JobStore

Row = dict[str, Any]
SUBJECTS = {DEVICE: "the device", TURN: "an equal training", LIMIT: "the device's limit of the server"}
OTHER_TENANT, THIS_MACHINE = "of another tenant", "of this machine"
"""In place of the name of a holder that a caller may not see, or that belongs to no tenant."""
OPEN = (JobState.PENDING, JobState.RUNNING)
STOPPING = ("cancelling", "pausing")
"""Details that say more than a wait does."""


class DeviceHolder(Response):
    """Process that uses a device."""

    kind: str
    """`job`, `session`, `program` (of `TrainingManager`), or `process`."""
    name: str
    """Its name, or id; of a holder of another tenant only that it is one."""
    run: str = ""
    pid: int = 0
    since: float | None = None
    """Seconds of the epoch."""


class DeviceWait(Response):
    """Wait of a job, and its cause."""

    reason: str
    """`device`, `turn` (an equal training) or `limit` (of the server)."""
    since: float
    """Seconds of the epoch."""
    position: int
    """Its place in the queue: 1 is the next."""
    holder: DeviceHolder | None = None
    """None for a process of another home, or a device that is free now."""
    text: str
    """All of it, in words."""


class DeviceState(Response):
    """A device of this machine, as Trainyard's processes use it."""

    device: int
    holder: DeviceHolder | None
    waiting: tuple[str, ...]
    """Names of those that wait for it, the next one first."""

    @property
    def text(self) -> str:
        """Holder and queue in words; empty for a free device without a queue."""
        owner = self.holder
        since = f" since {clock(owner.since)}" if owner is not None and owner.since else ""
        owned = f"{owner.kind} {owner.name} has it{since}" if owner is not None else ""
        queue = f"{len(self.waiting)} waiting: {', '.join(self.waiting)}" if self.waiting else ""
        return "; ".join(part for part in (owned, queue) if part)


def clock(time_s: float) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def name_holder(lock_holder: Holder, settings: Settings, tenant: str = "") -> DeviceHolder:
    """Return who a holder is. A caller of one tenant sees no name of another's."""
    kind, name, owner = find_owner(lock_holder.run, settings)
    facts: dict[str, object] = {"pid": lock_holder.pid, "since": lock_holder.since or None}
    if tenant not in ("", owner):
        name = OTHER_TENANT if owner else THIS_MACHINE
        return DeviceHolder(kind=kind, name=name, since=facts["since"])
    return DeviceHolder(kind=kind, name=name or f"process {lock_holder.pid}", run=lock_holder.run, **facts)


def find_owner(run: str, settings: Settings) -> tuple[str, str, str]:
    """Return kind, name and tenant of what a run is."""
    chain = read_chain(settings.runs / run) if run else None
    if chain is not None:
        return "job", chain.name, chain.tenant
    for record in list_records(settings):
        if run and read_status(settings, record.id).run == run:
            return "session", record.id if record.name == "session" else f"{record.name} ({record.id})", record.tenant
    try:
        job = JobStore(settings.home / "jobs").get(run) if run else None
    except TrainyardError:
        job = None
    if job is not None:
        return "program", job.name or job.id, job.tenant
    return "process", run, ""


def describe_wait(wait: Wait, settings: Settings, tenant: str = "") -> DeviceWait:
    """Return a wait as surfaces show it."""
    owner = name_holder(wait.holder, settings, tenant) if wait.holder else None
    text = f"waiting for {SUBJECTS[wait.reason]}"
    if owner is not None:
        since = f" since {clock(owner.since)}" if owner.since else ""
        text += f": {owner.kind} {owner.name} has it{since}"
    if wait.position > 1:
        text += f"; {wait.position - 1} before it in the queue"
    return DeviceWait(reason=wait.reason, since=wait.since, position=wait.position, holder=owner, text=text)


def read_waits(settings: Settings, tenant: str = "") -> dict[str, DeviceWait]:
    """Return what each run waits for, by its id."""
    waiters = list_waiters(settings)
    return {waiter.run: describe_wait(find_wait(waiter, waiters), settings, tenant) for waiter in waiters if waiter.run}


def add_waits(rows: Iterable[Row], settings: Settings, tenant: str = "") -> list[Row]:
    """Return rows of jobs; one that waits has `waiting`, and one that runs says in its detail what it does."""
    listed = list(rows)
    if not any(row["state"] in OPEN for row in listed):
        return listed
    waits = read_waits(settings, tenant)
    return [add_wait(row, waits.get(row["run_id"]), settings) for row in listed]


def add_wait(row: Row, wait: DeviceWait | None, settings: Settings) -> Row:
    if row["state"] not in OPEN or row.get("detail") in STOPPING:
        return row
    if wait is None:
        is_silent = row["state"] is JobState.RUNNING and not row.get("detail")
        return {**row, "detail": describe_activity(settings.runs / row["run_id"])} if is_silent else row
    return {**row, "detail": f"waiting for {SUBJECTS[wait.reason]}", "message": wait.text, "waiting": wait}


def describe_activity(folder: Path) -> str:
    """Return the current activity of the run of a folder."""
    chain = read_chain(folder)
    return read_activity(folder, {node.id: node.type for node in chain.nodes}) if chain else ""


def read_devices(settings: Settings, tenant: str = "") -> list[DeviceState]:
    """Return who has each device of this machine, and who waits for it."""
    waiters = list_waiters(settings)
    return [device_state(number, waiters, settings, tenant) for number in device_numbers()]


def device_state(number: int, waiters: list[Waiter], settings: Settings, tenant: str) -> DeviceState:
    path = slot_lock(settings, number)
    lock_holder = holder(path)
    names = [
        name_holder(Holder(waiter.pid, waiter.create_time, waiter.run), settings, tenant).name
        for waiter in waiters
        if str(path) in waiter.locks
    ]
    owner = name_holder(lock_holder, settings, tenant) if lock_holder else None
    return DeviceState(device=number, holder=owner, waiting=tuple(names))


WORDS = {
    "data_source": "reading", "ai_generator": "generating", "validator": "validating", "trainer": "training",
    "evaluator": "evaluating", "deployer": "deploying",
}  # fmt: skip


STARTING = "starting"


TAIL_BYTES = 16_384
"""Bytes read from the end of a run's events: some seconds of them."""


ACTIVE = ("started", "progress", "note", "warning")


def read_activity(folder: Path, types: dict[str, str]) -> str:
    """Return the activity of the node that reported last; empty where none is active. `types`: node -> its type."""
    for event in reversed(last_events(folder / EVENTS_FILE)):
        word = WORDS.get(types.get(str(event.get("node")), ""))
        if word is None:
            continue
        if event["event"] not in ACTIVE:
            return ""
        is_starting = word == WORDS["trainer"] and (event["event"] == "started" or event.get("text") == STARTING)
        return STARTING if is_starting else word
    return ""


def last_events(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines at the end of a file of events."""
    data, is_whole = read_end(path, TAIL_BYTES)
    lines = data.split(b"\n")[0 if is_whole else 1 : -1]
    return [orjson.loads(line) for line in lines if line]
