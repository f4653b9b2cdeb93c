"""Alerts: one automation for each, with an action for each Prefect block that the setting `alerts` names.

The server sends them, not this machine's processes: a webhook block (`webhook/NAME`) gets a JSON object, every other
block that can notify (`sendgrid-email/NAME`, `slack-webhook/NAME`, …) a subject and a text. Templates are Prefect's:
Jinja over the event and the objects that it names (https://docs.prefect.io/v3/concepts/automations).

No trigger is proactive: those count from an event and forget when the server restarts. A run that died without a word
becomes Crashed by the watchdog or by the heartbeat automation, and a missing night is an event of the watchdog.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import BlockDocument
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from trainyard.errors import InvalidInput
from trainyard.prefect_api.server import DISK_LOW, GPU_PRESSURE, NO_SUCCESS, RUNS, client
from trainyard.prefect_api.states import BUDGET_EXCEEDED
from trainyard.settings import Settings

PREFIX = "trainyard alert: "
WEBHOOK, NOTIFY = "webhook", "notify"
"""The block type that is called with a payload, and the capability of those that get a subject and a text."""
FAILED = tuple(f"prefect.flow-run.{word}" for word in ("Failed", "Crashed", "TimedOut", BUDGET_EXCEEDED))


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
