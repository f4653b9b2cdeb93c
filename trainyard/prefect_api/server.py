"""The only Prefect client, and the objects that a server needs: work pool, device limit, automations.

Those of nights write an event that an operator's own automation, mail block or chat block can react to; they change no
run. The server notices a failed night. It cannot notice that none succeeded by six in the morning: its proactive
triggers count hours since an event, not to a time of day in a zone, and forget when a server is restarted. So the
watchdog checks at six (`alerts.py`) and sends the event that the second automation waits for.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, DoNothing
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from trainyard.cancellation import BOUND, CALLER_HOOKS
from trainyard.compute.gpus import device_numbers
from trainyard.errors import LimitExceeded, Unavailable
from trainyard.prefect_api.pools import ensure_pool
from trainyard.prefect_api.states import BUDGET_EXCEEDED, NO_TRAINER, PREEMPTED, SKIPPED, SPENDING_LIMIT
from trainyard.proxies import exempt_loopback
from trainyard.settings import Settings, load_settings
from trainyard.stores.files import lacking_space

HEARTBEAT_TIMEOUT_S = 90
"""Three heartbeats of 30 s missed: the process is gone (measured: Crashed 89 s after SIGKILL of worker and flow)."""
LEAST_DATABASE_BYTES = 4 << 20
"""With less than that free, an error of the server means that its database is full."""
NO_HEARTBEAT = "No heartbeat"
ZOMBIES = "trainyard: mark dead runs as crashed"
NIGHT_FAILED = "trainyard: a night failed"
GPU_FULL = "trainyard: the memory of a GPU is nearly full"
NIGHT_MISSING = "trainyard: no night succeeded by six"
OUTDATED = {"trainyard: no night succeeded for a day"}
"""Automations of earlier releases."""
NO_SUCCESS = "trainyard.night.missing"
"""The event that the watchdog sends."""
GPU_PRESSURE = "trainyard.gpu.memory-pressure"
"""One of the watchdog's, too: the memory of a GPU is nearly full."""
DISK_LOW = "trainyard.disk.low"
"""Another one of the watchdog's."""
RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
NIGHTS = {"prefect.resource.role": "flow", "prefect.resource.name": "nightly"}
ENDS = (
    *("Completed", SKIPPED, "Failed", "Cancelled", "Crashed", "TimedOut", BUDGET_EXCEEDED, SPENDING_LIMIT),
    *("Suspended", "Paused", "Scheduled", "AwaitingRetry", "Resuming", "Late", PREEMPTED, NO_TRAINER),
)
"""Names of the states in which a run sends no heartbeat."""


def bootstrap(settings: Settings) -> None:
    """Create the missing ones of work pool, limits of devices and automation. A second call changes nothing."""
    with client() as prefect:
        ensure_pool(prefect, settings)
        for device in device_numbers():
            ensure_limit(prefect, limit_name(device))
    ensure_automations([zombie_automation(), *night_automations(), gpu_automation()])


@contextmanager
def client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the current server; a server that does not answer or refuses the login becomes one sentence."""
    exempt_loopback()
    try:
        with get_client(client_settings(), sync_client=True) as prefect:
            yield prefect
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise Unavailable(
                f"The Prefect server at {error.request.url.host} does not accept the credentials.",
                do="Set PREFECT_API_AUTH_STRING to those of that server.",
                code="E-AUTH",
            ) from error
        current = load_settings()
        if error.response.is_server_error and lacking_space(current.prefect_home, LEAST_DATABASE_BYTES):
            raise LimitExceeded(
                f"The Prefect server could not write its database: the disk of {current.prefect_home} is full.",
                why=f"It answered {error.response.status_code}.",
                do="Free space there and repeat the command; the server needs no restart.",
                code="E-DISK-FULL",
            ) from error
        raise
    except httpx.HTTPError as error:
        raise Unavailable(
            "The Prefect server does not answer.", why=str(error), do="Run `trainyard up`.", code="E-SERVER-UNREACHABLE"
        ) from error


def client_settings() -> dict[str, object] | None:
    """None is a flow's own client, with its open connection; what works for a caller ends with it."""
    return None if BOUND.get() is None else {"event_hooks": CALLER_HOOKS}


def limit_name(device: int = 0) -> str:
    """Return the name of a device's limit: one per host, because a server may serve several."""
    return f"device:{socket.gethostname()}:{device}"


def ensure_limit(prefect: SyncPrefectClient, name: str) -> None:
    """Create the limit with one slot; one that an operator changed stays as it is."""
    try:
        prefect.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        try:
            prefect.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        except ObjectAlreadyExists:
            return  # another process was faster


def zombie_automation() -> Automation:
    """Mark a run as crashed when it sent a heartbeat and then neither another one nor its end within 90 s.

    Events carry the names of states, so Trainyard's names are listed, too: without them a preempted run that waits to
    be continued would be marked, and a failed one would be marked again.
    """
    ends = {f"prefect.flow-run.{word}" for word in ENDS}
    return Automation(
        name=ZOMBIES,
        description="A flow run sends a heartbeat every 30 s; after three missed ones its process is gone.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match=RUNS,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=HEARTBEAT_TIMEOUT_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"{NO_HEARTBEAT} for {HEARTBEAT_TIMEOUT_S} s: the process is gone. "
                "Next: `trainyard up`, then `trainyard jobs resume ID --watch` with this run's id continues it.",
            )
        ],
    )


def night_automations() -> list[Automation]:
    """Return what says that a night failed or is missing, in Prefect's event feed, until an action is chosen there."""
    failed = {f"prefect.flow-run.{word}" for word in ("Failed", "Crashed", "TimedOut")}
    at_once = {"posture": Posture.Reactive, "threshold": 1, "within": timedelta(seconds=0)}
    return [
        Automation(
            name=NIGHT_FAILED,
            description="Read the run's report; it ends with the next command.",
            trigger=EventTrigger(expect=failed, match=RUNS, match_related=NIGHTS, **at_once),
            actions=[DoNothing()],
        ),
        Automation(
            name=NIGHT_MISSING,
            description="The watchdog looked at six in the zone of the schedule: no night had succeeded.",
            trigger=EventTrigger(expect={NO_SUCCESS}, **at_once),
            actions=[DoNothing()],
        ),
    ]


def gpu_automation() -> Automation:
    """Return what says that the memory of a GPU is nearly full, in Prefect's event feed, until an action is chosen
    there.
    """
    return Automation(
        name=GPU_FULL,
        description="Read `trainyard gpus`: it has the memory of each job. A smaller batch or quantization needs less.",
        trigger=EventTrigger(expect={GPU_PRESSURE}, posture=Posture.Reactive, threshold=1, within=timedelta(seconds=0)),
        actions=[DoNothing()],
    )


def ensure_automations(automations: Iterable[Automation]) -> None:
    """Write the automations that are not there, replace those of an older release, and remove outdated ones."""
    with client() as prefect:
        existing = {
            automation["name"]: automation
            for automation in prefect.request("POST", "/automations/filter", json={}).json()
        }
        for name in OUTDATED & existing.keys():
            prefect.request("DELETE", "/automations/{id}", path_params={"id": existing[name]["id"]})
        for automation in automations:
            body, current = (
                automation.model_dump(mode="json", exclude={"id", "owner_resource"}),
                existing.get(automation.name),
            )
            if current is None:
                prefect.request("POST", "/automations/", json=body)
            elif set(current["trigger"].get("expect") or ()) != set(body["trigger"]["expect"]):
                updated = {**body, "enabled": current["enabled"]}
                prefect.request("PUT", "/automations/{id}", path_params={"id": current["id"]}, json=updated)
