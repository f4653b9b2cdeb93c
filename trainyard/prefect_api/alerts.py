"""A disk with less free space than the setting `min_free_mb`: one event when that begins, not one a look.

A GPU whose memory is nearly full (`gpu_memory_alert_percent`): one event when that begins, not one a look.

At six in the morning, in the zone of the schedule: was a night expected since yesterday at six, and did one succeed?

A night is expected if the server had scheduled one; a deployment without an active schedule expects none. A date is
judged once, also over restarts of the watchdog, and later on that day if no check was possible at six. Days are local
calendar days: one of 23 or 25 hours is still one day.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from datetime import time as Time
from pathlib import Path
from uuid import uuid4
from zoneinfo import ZoneInfo

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse

from trainyard.app.gpus import MONITOR
from trainyard.compute.monitor import GpuMonitor, GpuReading
from trainyard.json_types import JsonObject
from trainyard.prefect_api.server import DISK_LOW, GPU_PRESSURE, NO_SUCCESS, client
from trainyard.prefect_api.states import SKIPPED
from trainyard.settings import Settings
from trainyard.stores.files import lacking_space
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

BYTES_PER_MIB = 1 << 20


@dataclass
class DiskWatch:
    """Looks at the free space of the home's disk; says once that it is low, and again after it was not."""

    settings: Settings
    low: bool = field(default=False, init=False)

    def look(self) -> list[str]:
        """Send the event if space has become low; return its sentence. Raises what the server's client raises."""
        lacking = lacking_space(self.settings.home, self.settings.min_free_mb * BYTES_PER_MIB)
        if lacking is None:
            self.low = False
        if lacking is None or self.low:
            return []
        event: dict[str, object] = {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": DISK_LOW,
            "resource": {
                "prefect.resource.id": f"trainyard.home.{self.settings.home}",
                "prefect.resource.name": str(self.settings.home),
            },
            "payload": {"message": lacking.what},
        }
        with client() as prefect:
            prefect.request("POST", "/events", json=[event])
        self.low = True
        return [lacking.what]


RELIEVED_PERCENT = 5
"""By so much less the pressure has ended: memory that goes up and down at the threshold is one episode."""


@dataclass
class GpuWatch:
    """Looks at the memory of each GPU; says once that it is nearly full, and again after it was not."""

    settings: Settings
    monitor: GpuMonitor = MONITOR
    pressed: set[int] = field(default_factory=set, init=False)
    """GPUs whose event was sent."""

    def look(self) -> list[str]:
        """Send the event of each GPU that has become nearly full. Raises what the server's client raises."""
        threshold = self.settings.gpu_memory_alert_percent
        messages = []
        for gpu in self.monitor.read().gpus if threshold else ():
            percent = 100 * gpu.memory_used_mb / max(1, gpu.memory_total_mb)
            if percent < threshold - RELIEVED_PERCENT:
                self.pressed.discard(gpu.index)
            if percent >= threshold and gpu.index not in self.pressed:
                message = f"GPU {gpu.index} ({gpu.name}) uses {gpu.memory_used_mb:,} of {gpu.memory_total_mb:,} MiB."
                with client() as prefect:
                    prefect.request("POST", "/events", json=[self.event(gpu, message)])
                self.pressed.add(gpu.index)
                messages.append(message)
        return messages

    def event(self, gpu: GpuReading, message: str) -> JsonObject:
        return {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": GPU_PRESSURE,
            "resource": {
                "prefect.resource.id": f"trainyard.gpu.{self.settings.home}.{gpu.index}",
                "prefect.resource.name": f"GPU {gpu.index} of {self.settings.home}",
            },
            "payload": {
                "message": message, "memory_used_mb": gpu.memory_used_mb, "memory_total_mb": gpu.memory_total_mb,
                "threshold_percent": self.settings.gpu_memory_alert_percent,
            },
        }  # fmt: skip


FLOW, DUE = "nightly", Time(6, 0)
JUDGED_FILE = "night-watch.json"
LOOK_EVERY_S = 60.0
MOST_RUNS = 200


@dataclass
class NightWatch:
    """Checks for missing nights; however often it is called, it asks the server once a minute. `now`: Unix seconds."""

    settings: Settings
    now: Callable[[], float] = time.time
    looked: float = field(default=-math.inf, init=False)

    @property
    def path(self) -> Path:
        """Deployment -> the last six o'clock that was judged."""
        return self.settings.services / JUDGED_FILE

    def look(self) -> list[str]:
        """Send the event for every deployment without a success; return a sentence for each."""
        now = self.now()
        if abs(now - self.looked) < LOOK_EVERY_S:
            return []
        messages: list[str] = []
        judged = read_versioned("night-watch", self.path.read_bytes(), self.path) if self.path.is_file() else {}
        with client() as prefect:
            for deployment, zone in list_scheduled(prefect):
                due = last_due(now, zone)
                if judged.get(str(deployment.id)) == due.isoformat():
                    continue
                if is_missed(list_runs_before(prefect, deployment, due), due):
                    send(prefect, deployment, due)
                    messages.append(f"no night of {deployment.name} succeeded by {due:%Y-%m-%d %H:%M} ({zone})")
                judged[str(deployment.id)] = due.isoformat()
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json_durably(self.path, add_version("night-watch", judged))
        self.looked = now
        return messages


def list_scheduled(prefect: SyncPrefectClient) -> Iterator[tuple[DeploymentResponse, str]]:
    """Yield the deployments of the night with an active schedule, and its zone."""
    flow = FlowFilter.model_validate({"name": {"any_": [FLOW]}})
    for deployment in prefect.read_deployments(flow_filter=flow):
        awake = [schedule.schedule for schedule in deployment.schedules if schedule.active]
        if awake and not deployment.paused:
            yield deployment, getattr(awake[0], "timezone", None) or "UTC"


def last_due(now: float, zone: str) -> datetime:
    """Return the last six o'clock in a zone."""
    local = datetime.fromtimestamp(now, ZoneInfo(zone))
    date = local.date() if local.timetz().replace(tzinfo=None) >= DUE else local.date() - timedelta(days=1)
    return datetime.combine(date, DUE, ZoneInfo(zone))


def list_runs_before(prefect: SyncPrefectClient, deployment: DeploymentResponse, due: datetime) -> list[FlowRun]:
    """Return the runs that were to begin in the calendar day up to `due`."""
    since = datetime.combine(due.date() - timedelta(days=1), DUE, due.tzinfo)
    expected = {"after_": since.astimezone(UTC), "before_": due.astimezone(UTC)}
    return prefect.read_flow_runs(
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
        flow_run_filter=FlowRunFilter.model_validate({"expected_start_time": expected}),
        limit=MOST_RUNS,
    )


def is_missed(runs: list[FlowRun], due: datetime) -> bool:
    """Return whether the schedule expected a night and no run, by schedule or by hand, had trained or read at `due`.

    A run that found its date done does not count: the run that did that night does.
    """
    done = [run for run in runs if run.state and run.state.is_completed() and run.state.name != SKIPPED]
    in_time = [run for run in done if run.end_time is None or run.end_time <= due]
    return any(run.auto_scheduled for run in runs) and not in_time


def send(prefect: SyncPrefectClient, deployment: DeploymentResponse, due: datetime) -> None:
    """Send the event that the automation waits for; its id says which morning it is about, so that twice is once."""
    event: dict[str, object] = {
        "id": str(uuid.uuid5(deployment.id, due.isoformat())),
        "occurred": datetime.now(UTC).isoformat(),
        "event": NO_SUCCESS,
        "resource": {
            "prefect.resource.id": f"prefect.deployment.{deployment.id}",
            "prefect.resource.name": deployment.name,
        },
        "payload": {"due": due.isoformat()},
    }
    prefect.request("POST", "/events", json=[event])
