"""A trainer on a machine of its own: polls for markers, and brings each that it gets to its end."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.errors import Conflict
from trainyard.night.claim import claim_and_train, waiting_markers, was_paused
from trainyard.night.deps import NightDeps
from trainyard.night.phases import BUSY
from trainyard.night.report import TrainingReport
from trainyard.spec.night import NightConfig

OCCUPIED = BUSY | {"E-DEVICE-OCCUPIED"}
"""Another run has the device, or another program computes on it, such as the model server of phase 1: markers wait."""


def poll(config: NightConfig, world: NightDeps) -> list[TrainingReport]:
    """Take every marker that is free or abandoned, SFT first, each within the budget of phase 2.

    A marker whose budget ended, or that failed, is left alone until the next date.
    """
    run = config.window.find_date(world.clock.now())
    reports = []
    for marker in waiting_markers(world, config.tenant):
        if was_paused(world, marker, run):
            continue
        try:
            with world.alone(marker.name):
                deadline = world.clock.monotonic() + config.window.phase2_s
                reports.append(claim_and_train(marker, config, world, deadline, run))
        except Conflict as busy:
            if busy.code not in OCCUPIED:
                raise
            world.say(f"{marker.name} waits: {busy.what}")
    return reports


def work(config: NightConfig, world: NightDeps, *, on: Callable[[], bool]) -> list[TrainingReport]:
    """Poll while `on()`; returns the reports of the last poll that did something."""
    last: list[TrainingReport] = []
    while True:
        reports = poll(config, world)
        for report in reports:
            world.say(f"{report.marker}: {report.outcome} {report.version} {report.note}".rstrip())
        last = reports or last
        if not on():
            return last
        world.clock.sleep(config.phase2.poll_s)
