"""Prefect's automations for nights: one that failed, and none that succeeded by six in the morning.

Both write an event that an operator's own automation, mail block or chat block can answer to; they change no run.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.automations import Automation
from prefect.events.actions import DoNothing
from prefect.events.schemas.automations import EventTrigger, Posture

from trainyard.api.runs.server import client

FAILED = "trainyard: a night failed"
MISSING = "trainyard: no night succeeded for a day"
DAY_S = 86_400
RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
NIGHTS = {"prefect.resource.role": "flow", "prefect.resource.name": "nightly"}


def night_automations() -> list[Automation]:
    """What `bootstrap` writes to the server: they fire in Prefect's event feed until an action is chosen there."""
    failed = {f"prefect.flow-run.{word}" for word in ("Failed", "Crashed", "TimedOut")}
    return [
        Automation(
            name=FAILED,
            description="Read the run's report; it ends with the next command.",
            trigger=EventTrigger(
                expect=failed, match=RUNS, match_related=NIGHTS, posture=Posture.Reactive, threshold=1,
                within=timedelta(seconds=0),
            ),
            actions=[DoNothing()],
        ),
        Automation(
            name=MISSING,
            description="A night that starts at one has ended by six; this fires when a whole day had no success.",
            trigger=EventTrigger(
                after={"prefect.flow-run.Completed"},
                expect={"prefect.flow-run.Completed"},
                match=RUNS,
                match_related=NIGHTS,
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=DAY_S + 5 * 3600),
            ),
            actions=[DoNothing()],
        ),
    ]  # fmt: skip


def ensure_night_automations() -> None:
    """Write those that are not there. Repeating changes nothing."""
    with client() as prefect:
        there = {automation["name"] for automation in prefect.request("POST", "/automations/filter", json={}).json()}
        for one in night_automations():
            if one.name not in there:
                prefect.request("POST", "/automations/", json=one.model_dump(mode="json", exclude={"id"}))
