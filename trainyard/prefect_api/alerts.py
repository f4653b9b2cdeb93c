"""Alerts: a missed night (`NightWatch`), a nearly full disk (`DiskWatch`) or GPU (`GpuWatch`), failed runs.

An alert is an automation with an action for each Prefect block that the setting `alerts` names. The server sends it,
not this machine's processes: a webhook block (`webhook/NAME`) gets a JSON object, every other block that can notify
(`sendgrid-email/NAME`, `slack-webhook/NAME`, …) a subject and a text. Templates are Prefect's: Jinja over the event and
the objects that it names (https://docs.prefect.io/v3/concepts/automations).

No trigger is proactive: those count from an event and forget when the server restarts. A run that died silently becomes
Crashed by the watchdog or by the heartbeat automation. The watchdog (`watchdog.py`) calls the three watches:

NightWatch  at six in the morning, in the zone of the schedule: was a night expected since yesterday at six, and did one
            succeed? A night is expected if the server had scheduled one. A date is judged once, also over restarts of
            the watchdog, and later on that day if no check was possible at six. Days are local calendar days.
DiskWatch   less free space than the setting `min_free_mb`: one event when that begins
GpuWatch    memory above `gpu_memory_alert_percent`: one event when that begins
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

from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import BlockDocument, FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from trainyard.app.gpus import MONITOR
from trainyard.compute.monitor import GpuMonitor, GpuReading
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.prefect_api.server import DISK_LOW, GPU_PRESSURE, NO_SUCCESS, RUNS, client
from trainyard.prefect_api.states import BUDGET_EXCEEDED, SKIPPED, SPENDING_LIMIT
from trainyard.settings import Settings
from trainyard.stores.files import lacking_space
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

PREFIX = "trainyard alert: "
WEBHOOK, NOTIFY = "webhook", "notify"
"""The block type that is called with a payload, and the capability of those that get a subject and a text."""
FAILED = tuple(
    f"prefect.flow-run.{word}" for word in ("Failed", "Crashed", "TimedOut", BUDGET_EXCEEDED, SPENDING_LIMIT)
)


@dataclass(frozen=True)
class Alert:
    """An alert: the events that send it, and its two texts as Jinja templates."""

    name: str
    events: tuple[str, ...]
    subject: str
    text: str
    match: dict[str, str] = field(default_factory=dict)
    """Labels of the event's resource; `POOL` means the name of this home's work pool."""
    match_related: dict[str, str] = field(default_factory=dict)


POOL = "{pool}"
ALERTS = (
    Alert(
        name="run failed",
        events=FAILED,
        subject="Trainyard: the run {{ flow_run.name }} has failed",
        text="{{ flow_run.state.name }}: {{ flow_run.state.message }}\nRead `trainyard jobs logs {{ flow_run.id }}`.",
        match=RUNS,
        match_related={"prefect.resource.role": "work-pool", "prefect.resource.name": POOL},
    ),
    Alert(
        name="disk low",
        events=(DISK_LOW,),
        subject="Trainyard: the disk of {{ event.resource.name }} is nearly full",
        text="{{ event.payload.message }}\nSee what can go by `trainyard gc --dry-run`.",
    ),
    Alert(
        name="gpu memory",
        events=(GPU_PRESSURE,),
        subject="Trainyard: the memory of {{ event.resource.name }} is nearly full",
        text="{{ event.payload.message }}\nSee the memory of each job by `trainyard gpus`.",
    ),
    Alert(
        name="worker gone",
        events=("prefect.work-pool.not-ready",),
        subject="Trainyard: no worker serves the pool {{ event.resource.name }}",
        text="No worker of the pool has sent a heartbeat for 90 s; runs wait. Run `trainyard up` on its machine.",
        match={"prefect.resource.id": "prefect.work-pool.*", "prefect.resource.name": POOL},
    ),
    Alert(
        name="night skipped",
        events=(NO_SUCCESS,),
        subject="Trainyard: no night of {{ event.resource.name }} succeeded by six",
        text="Due at {{ event.payload.due }}. Read `trainyard nightly status`.",
    ),
)
"""The table of alerts."""


def ensure_alerts(settings: Settings) -> None:
    """Write an automation for every alert, or none if the setting names no block; those that are off stay off.

    Raises `InvalidInput` (`E-SETTINGS`) for a block that the server does not have, or that cannot notify.
    """
    with client() as prefect:
        blocks = [find_block(prefect, name) for name in settings.alerts]
        automations_by_name = {
            automation["name"]: automation
            for automation in prefect.request("POST", "/automations/filter", json={}).json()
        }
        own_automations = {
            name: automation for name, automation in automations_by_name.items() if name.startswith(PREFIX)
        }
        desired = {automation.name: automation for automation in automations(settings.work_pool, blocks)}
        for name in own_automations.keys() - desired.keys():
            prefect.request("DELETE", "/automations/{id}", path_params={"id": own_automations[name]["id"]})
        for name, automation in desired.items():
            body = automation.model_dump(mode="json", exclude={"id", "owner_resource"})
            if (current := own_automations.get(name)) is None:
                prefect.request("POST", "/automations/", json=body)
                continue
            updated = {**body, "enabled": current["enabled"]}
            prefect.request("PUT", "/automations/{id}", path_params={"id": current["id"]}, json=updated)


def find_block(prefect: SyncPrefectClient, name: str) -> BlockDocument:
    """Return the block document `TYPE/NAME`. Raises `InvalidInput` (`E-SETTINGS`)."""
    kind, _, document = name.partition("/")
    try:
        block = prefect.read_block_document_by_name(document, kind, include_secrets=False)
    except ObjectNotFound as error:
        raise InvalidInput(
            f"The setting alerts names the block {name}, which this Prefect server does not have.",
            do=f"Make it in the Prefect UI under Blocks (`prefect block create {kind}` prints the page), and repeat "
            "`trainyard up`; or take it out of the setting.",
            code="E-SETTINGS",
        ) from error
    capabilities = block.block_schema.capabilities if block.block_schema else []
    if kind != WEBHOOK and NOTIFY not in capabilities:
        raise InvalidInput(
            f"The block {name} cannot send an alert.",
            why="A block of this type neither notifies nor is a webhook.",
            do="Name one of the types webhook, sendgrid-email, slack-webhook, or another that notifies.",
            code="E-SETTINGS",
        )
    return block


def automations(pool: str, blocks: list[BlockDocument]) -> Iterator[Automation]:
    """Yield the automation of every alert; none without a block."""
    for alert in ALERTS if blocks else ():
        match, related = (
            {key: pool if value == POOL else value for key, value in labels.items()}
            for labels in (alert.match, alert.match_related)
        )
        yield Automation(
            name=PREFIX + alert.name,
            description="Made by `trainyard up` from the setting `alerts`, and written again by it.",
            trigger=EventTrigger(
                expect=set(alert.events),
                match=match,
                match_related=related,
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(seconds=0),
            ),
            actions=[action(alert, block) for block in blocks],
        )


def action(alert: Alert, block: BlockDocument) -> ActionTypes:
    """Return the server's action for a block: call it with a JSON object, or send subject and text."""
    kind = block.block_type.slug if block.block_type else ""
    if kind != WEBHOOK:
        return SendNotification(block_document_id=block.id, subject=alert.subject, body=alert.text)
    texts = f"{{% set subject %}}{alert.subject}{{% endset %}}{{% set text %}}{alert.text}{{% endset %}}"
    answer = f"{{{{ {{'alert': '{alert.name}', 'subject': subject, 'text': text}} | tojson }}}}"
    return CallWebhook(block_document_id=block.id, payload=texts + answer)


BYTES_PER_MIB = 1 << 20


@dataclass
class DiskWatch:
    """Looks at the free space of the home's disk; says once that it is low, and again after it was not."""

    settings: Settings
    low: bool = field(default=False, init=False)

    def look(self) -> list[str]:
        """Send the event if space has become low; return its sentence. Raises errors of the server's client."""
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
        """Send the event of each GPU that has become nearly full. Raises errors of the server's client."""
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
