"""How long a training would wait for its device, from what is known about the one that uses it now."""

from __future__ import annotations

from pathlib import Path
from time import time as now

from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import holder, slot_lock
from trainyard.errors import TrainyardError
from trainyard.loading import load
from trainyard.settings import Settings
from trainyard.stores.jobs import JobStore
from trainyard.stores.metrics import TrainingPace, number


def queue_seconds(settings: Settings) -> float | None:
    """Seconds until the first device is free: 0 where one is, None where its training does not say."""
    waits: list[float | None] = []
    for device in device_numbers():
        user = holder(slot_lock(settings, device))
        if user is None:
            return 0.0
        waits.append(seconds_left(user.run, settings))
    known = [wait for wait in waits if wait is not None]
    return min(known) if known else None


def seconds_left(run: str, settings: Settings) -> float | None:
    """Seconds to the last step of the training that a run, or a job without a server, does now."""
    left, reported = None, 0.0
    for path in event_files(run, settings):
        pace = TrainingPace()
        for event in read_events(path):
            if event["event"] in ("started", "begin"):
                pace, left = TrainingPace(), None
            elif event["event"] == "progress":
                total, time = number(event.get("total_steps")), number(event.get("time"))
                left, reported = pace.left_s(int(number(event.get("step")) or 0), total, time), time or 0.0
    return None if left is None else max(0.0, left - max(0.0, now() - reported))


def event_files(run: str, settings: Settings) -> list[Path]:
    """The events of the newest training of a run, or of a job."""
    if not run:
        return []
    # What follows a run imports the readers of tables: a plan while every device is free does without.
    logs = load("trainyard.app.training_logs:training_logs_of")(settings.runs / run)
    if logs:
        return [logs[-1].folder / EVENTS_FILE]
    try:
        return [load("trainyard.backends.manager:events_file")(Path(JobStore(settings.home / "jobs").get(run).work))]
    except TrainyardError:
        return []  # a night, an evaluation or a measurement: none of them says how long it takes
