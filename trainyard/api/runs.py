"""The one Prefect client: what a server has to hold for us, starting and watching runs, and the device slot.

Prefect's database is the truth about runs, schedules and slots; this module only translates. Importing it imports
Prefect (seconds), so it is imported by flows and nodes, and by the command line only through `operations.load`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.concurrency.sync import concurrency
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Crashed, Scheduled

from trainyard.api.records import EventReader, NodeResult, NodeState, RunResult, RunState, read_result
from trainyard.compute.lease import device_lock
from trainyard.compute.supervise import Wanted
from trainyard.errors import Conflict, InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.settings import Settings

Event = dict[str, Any]
OnProgress = Callable[[Event], None]

POLL_S = 0.25
STATE_EVERY_S = 1.0
WANTED_EVERY_S = 2.0
"""How often a training asks Prefect whether it should go on (a pause is noticed within this)."""
NO_WORKER_AFTER_S = 15.0
BEATS_WITHIN_S = 90
"""Three beats of 30 s missed: the run's process is gone (measured: Crashed 89 s after SIGKILL of worker and flow)."""
ZOMBIES = "trainyard: mark dead runs as crashed"

STATES: dict[StateType, tuple[RunState, str]] = {
    StateType.SCHEDULED: (RunState.PENDING, ""),
    StateType.PENDING: (RunState.PENDING, "starting"),
    StateType.RUNNING: (RunState.RUNNING, ""),
    StateType.PAUSED: (RunState.PAUSED, ""),
    StateType.CANCELLING: (RunState.RUNNING, "cancelling"),
    StateType.COMPLETED: (RunState.COMPLETED, ""),
    StateType.FAILED: (RunState.FAILED, ""),
    StateType.CRASHED: (RunState.FAILED, "crashed"),
    StateType.CANCELLED: (RunState.CANCELED, ""),
}
"""Prefect's state types in our words: (state, detail)."""

DETAILS = {"Late": "late", "AwaitingRetry": "awaiting retry", "AwaitingConcurrencySlot": "waiting for a slot"}

NODE_STATES: dict[StateType, NodeState] = {
    StateType.SCHEDULED: NodeState.PENDING,
    StateType.PENDING: NodeState.PENDING,
    StateType.RUNNING: NodeState.RUNNING,
    StateType.PAUSED: NodeState.RUNNING,
    StateType.CANCELLING: NodeState.RUNNING,
    StateType.COMPLETED: NodeState.COMPLETED,
    StateType.FAILED: NodeState.FAILED,
    StateType.CRASHED: NodeState.FAILED,
    StateType.CANCELLED: NodeState.CANCELED,
}


def run_state(state: State[Any] | None) -> tuple[RunState, str]:
    """A flow run's state in our words."""
    if state is None:
        return RunState.PENDING, ""
    word, detail = STATES[state.type]
    return word, DETAILS.get(state.name or "", detail)


def node_state(state: State[Any] | None) -> NodeState:
    """A task run's state in our words: a task whose upstream failed stays `NotReady`, which is *skipped*."""
    if state is None:
        return NodeState.PENDING
    named = {"NotReady": NodeState.SKIPPED, "Cached": NodeState.REUSED}
    return named.get(state.name or "", NODE_STATES[state.type])


# What a server has to hold for us.


def bootstrap(settings: Settings) -> None:
    """Create the work pool, the device's limit and the automation if they are not there. Repeating changes nothing."""
    with client() as prefect:
        ensure_pool(prefect, settings.work_pool)
        ensure_limit(prefect, limit_name())
    ensure_automation()


@contextmanager
def client() -> Iterator[SyncPrefectClient]:
    """A client of the current server; a server that does not answer becomes one sentence."""
    try:
        with get_client(sync_client=True) as prefect:
            yield prefect
    except httpx.HTTPStatusError:
        raise
    except httpx.HTTPError as error:
        raise Unavailable(
            "The Prefect server does not answer.", why=str(error), do="Run `trainyard up`.", code="E-SERVER-UNREACHABLE"
        ) from error


def ensure_pool(prefect: SyncPrefectClient, name: str) -> None:
    try:
        prefect.read_work_pool(name)
    except ObjectNotFound:
        prefect.create_work_pool(WorkPoolCreate(name=name, type="process"))


def limit_name(device: int = 0) -> str:
    """The name of a device's limit: one per host, because a server may serve several."""
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
    """A run that beat once and then neither beats nor ends within 90 s is marked as crashed."""
    ends = {f"prefect.flow-run.{word}" for word in ("Completed", "Failed", "Cancelled", "Crashed", "Suspended")}
    return Automation(
        name=ZOMBIES,
        description="A flow run beats every 30 s; after three missed beats its process is gone.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=BEATS_WITHIN_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {BEATS_WITHIN_S} s: the process is gone. "
                "Next: `trainyard up`, then `trainyard run ID --watch` with this run's id continues it.",
            )
        ],
    )


def ensure_automation() -> None:
    with client() as prefect:
        response = prefect.request("POST", "/automations/filter", json={})
        if any(automation["name"] == ZOMBIES for automation in response.json()):
            return
        prefect.request("POST", "/automations/", json=zombie_automation().model_dump(mode="json", exclude={"id"}))


# Starting and watching runs.


def run_deployment(
    name: str,
    parameters: Mapping[str, Any],
    *,
    settings: Settings,
    on_progress: OnProgress = lambda _event: None,
    tags: tuple[str, ...] = (),
) -> RunResult:
    """Start a deployment (`qa-pipeline/local`), follow it to its end and return what every node left.

    `on_progress` receives {"node", "event", …} as the run writes them; events of the run itself have an empty node.
    Raises `NotFound` for the deployment and `InvalidInput` (`E-PARAMETERS`) for parameters that its form refuses.
    """
    started = start_run(name, parameters, settings=settings, tags=tags)
    return watch(started.run_id, settings=settings, on_progress=on_progress)


def start_run(name: str, parameters: Mapping[str, Any], *, settings: Settings, tags: tuple[str, ...] = ()) -> RunResult:
    """Create a run of a deployment; a worker takes it. Relative data paths mean the caller's working folder."""
    environment = {"TRAINYARD_WORKING_FOLDER": str(settings.working_folder), "TRAINYARD_HOME": str(settings.home)}
    with client() as prefect:
        deployment = find_deployment(prefect, name)
        try:
            run = prefect.create_flow_run_from_deployment(
                deployment.id, parameters=dict(parameters), tags=tags, job_variables={"env": environment}
            )
        except PrefectHTTPStatusError as error:
            raise refused_parameters(name, error) from error
        return started_result(prefect, run, "started")


def started_result(prefect: SyncPrefectClient, run: FlowRun, message: str) -> RunResult:
    return RunResult(
        run_id=str(run.id),
        name=run.name,
        chain="",
        digest="",
        state=RunState.PENDING,
        message=message,
        url=run_url(prefect, run.id),
    )


def continue_run(run_id: str) -> RunResult:
    """Start an ended run again: finished nodes are reused, a training goes on from its last checkpoint.

    Raises `NotFound` (`E-NO-RUN`) and `Conflict` (`E-RUN-ACTIVE`) for a run that has not ended.
    """
    with client() as prefect:
        try:
            run = prefect.read_flow_run(UUID(run_id))
        except ObjectNotFound as error:
            raise NotFound(
                f"There is no run {run_id} on this server.", do="List the runs in the Prefect UI.", code="E-NO-RUN"
            ) from error
        if run.state is not None and not run.state.is_final():
            raise Conflict(
                f"The run {run.name} has not ended: it is {run.state.name}.",
                do="Watch it in the Prefect UI, or cancel it first.",
                code="E-RUN-ACTIVE",
            )
        prefect.set_flow_run_state(run.id, Scheduled(message="continued"), force=True)
        return started_result(prefect, run, "continued")


def crash_dead_runs(settings: Settings, worker_name: str) -> list[str]:
    """Mark the runs as crashed whose process on this machine is gone, and return their ids.

    Called before a worker starts: what the worker before it took down with itself would read Running until the
    automation notices the missing beats.
    """
    wanted = FlowRunFilter(state={"type": {"any_": [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING]}})
    pool = WorkPoolFilter(name={"any_": [settings.work_pool]})
    dead = []
    with client() as prefect:
        for run in prefect.read_flow_runs(flow_run_filter=wanted, work_pool_filter=pool):
            if run.labels.get("prefect.worker.name") == worker_name and not process_of(run):
                message = f"Its process ended with the worker. Next: `trainyard run {run.id} --watch` continues it."
                prefect.set_flow_run_state(run.id, Crashed(message=message), force=True)
                dead.append(str(run.id))
    return dead


def process_of(run: FlowRun) -> psutil.Process | None:
    """The live process of a run of this machine; a pid that belongs to something else by now does not count."""
    try:
        process = psutil.Process(int(run.infrastructure_pid or 0))
        ours = any("prefect" in word for word in process.cmdline())
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError):
        return None


def find_deployment(prefect: SyncPrefectClient, name: str) -> DeploymentResponse:
    try:
        return prefect.read_deployment_by_name(name)
    except (ObjectNotFound, ValueError) as error:
        known = sorted(f"{row['flow_name']}/{row['name']}" for row in deployments(prefect))
        raise NotFound(
            f"There is no deployment {name!r} on this server.",
            why=f"It has: {', '.join(known) or 'none'}.",
            do="Correct the name, or run `trainyard up`, which writes the deployments of prefect.yaml.",
            code="E-NO-DEPLOYMENT",
        ) from error


def deployments(prefect: SyncPrefectClient) -> list[dict[str, str]]:
    flows = {flow.id: flow.name for flow in prefect.read_flows()}
    return [{"flow_name": flows.get(d.flow_id, "?"), "name": d.name} for d in prefect.read_deployments()]


def refused_parameters(name: str, error: PrefectHTTPStatusError) -> TrainyardError:
    """The server checked the parameters against the flow's form; its words name the field."""
    try:
        detail = str(error.response.json().get("detail", error.response.text))
    except json.JSONDecodeError:
        detail = error.response.text
    return InvalidInput(
        f"The parameters for {name} are not valid.",
        why=detail,
        do=f"See the parameters by `prefect deployment inspect {name}` or in the form of the Prefect UI.",
        code="E-PARAMETERS",
    )


def watch(
    run_id: str, *, settings: Settings, on_progress: OnProgress = lambda _event: None, since: float = 0.0
) -> RunResult:
    """Follow a run to its end: its events as they are written, its state from the server once a second.

    `since` is a time in seconds of the epoch: events before it, those of earlier attempts, are not told again.
    """
    events = EventReader(settings.runs / run_id)
    state_due, last = 0.0, ""
    started = time.monotonic()
    with client() as prefect:
        while True:
            tell(events, since, on_progress)
            if time.monotonic() >= state_due:
                run = prefect.read_flow_run(UUID(run_id))
                state_due = time.monotonic() + STATE_EVERY_S
                last = tell_state(run, last, time.monotonic() - started, on_progress)
                if run.state is not None and run.state.is_final():
                    break
            time.sleep(POLL_S)
        tell(events, since, on_progress)
        return result_of(prefect, run, events.folder)


def tell(events: EventReader, since: float, on_progress: OnProgress) -> None:
    for event in events.read():
        if event["time"] >= since:
            on_progress(event)


def tell_state(run: FlowRun, last: str, waited_s: float, on_progress: OnProgress) -> str:
    """Report a changed state, and a run that nobody takes."""
    word, detail = run_state(run.state)
    text = f"{word.value} ({detail})" if detail else word.value
    if word is RunState.PENDING and waited_s > NO_WORKER_AFTER_S:
        text = "pending: no worker has taken it yet; `trainyard up` starts one"
    if text != last:
        on_progress({"node": "", "event": "state", "time": time.time(), "text": text, "name": run.name})
    return text


def result_of(prefect: SyncPrefectClient, run: FlowRun, folder: Path) -> RunResult:
    """How a run ended: its own record if it is on this machine, corrected by Prefect's state, which is the truth."""
    word, detail = run_state(run.state)
    message = (run.state.message if run.state else "") or detail
    seconds = run.total_run_time.total_seconds()
    own = read_result(folder)
    if own is not None:
        return own.model_copy(update={"state": word, "message": message, "url": run_url(prefect, run.id)})
    return RunResult(
        run_id=str(run.id),
        name=run.name,
        chain="",
        digest="",
        state=word,
        message=message,
        nodes=tuple(node_results(prefect, run.id)),
        url=run_url(prefect, run.id),
        seconds=round(seconds, 3),
    )


def node_results(prefect: SyncPrefectClient, run_id: UUID) -> list[NodeResult]:
    """Nodes from Prefect's task runs, the newest of each name: a resumed run leaves rows of earlier attempts."""
    newest: dict[str, TaskRun] = {}
    task_runs = prefect.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])))
    for task_run in sorted(task_runs, key=lambda one: one.created or one.expected_start_time):  # type: ignore[arg-type,return-value]
        newest[task_run.name] = task_run
    return [
        NodeResult(
            id=name,
            type=task_run.task_key.rpartition("-")[0],
            state=node_state(task_run.state),
            seconds=round(task_run.total_run_time.total_seconds(), 3),
            message=(task_run.state.message if task_run.state else "") or "",
        )
        for name, task_run in newest.items()
    ]


def run_url(prefect: SyncPrefectClient, run_id: UUID) -> str:
    """The run's page in Prefect's UI."""
    return f"{str(prefect.api_url).rstrip('/').removesuffix('/api')}/runs/flow-run/{run_id}"


# What a node asks while it works.


def wanted_by(run_id: str) -> Callable[[], Wanted]:
    """A function that says whether the run should go on, asking the server at most every two seconds.

    A server that does not answer for a while changes nothing: two hours of training outlive a restart of it.
    """
    asked_at, answer = 0.0, Wanted.RUN

    def wanted() -> Wanted:
        nonlocal asked_at, answer
        if time.monotonic() - asked_at >= WANTED_EVERY_S:
            asked_at = time.monotonic()
            answer = ask_wanted(run_id, answer)
        return answer

    return wanted


def ask_wanted(run_id: str, otherwise: Wanted) -> Wanted:
    try:
        with client() as prefect:
            state = prefect.read_flow_run(UUID(run_id)).state
    except (TrainyardError, PrefectHTTPStatusError, ObjectNotFound):
        return otherwise
    if state is None:
        return Wanted.RUN
    if state.type is StateType.PAUSED:
        return Wanted.PAUSE
    return Wanted.CANCEL if state.type in (StateType.CANCELLING, StateType.CANCELLED) else Wanted.RUN


@contextmanager
def gpu_slot(settings: Settings, *, run: str = "", device: int = 0) -> Iterator[None]:
    """The right to compute on a device of this host: one training at a time, on a CPU too.

    A local file lock is taken first (its holder's death frees it, and the next one gets it within 0.2 s), then the
    server's limit with a lease, which other hosts and Prefect's pages see. A server that is away for a minute does not
    end a training of hours: a lease that cannot be renewed is only logged.
    """
    name = limit_name(device)
    with client() as prefect:
        ensure_limit(prefect, name)
    lock = settings.services / f"slot-{device}.lock"
    lease_s = settings.lease_duration_s
    with (
        device_lock(lock, run=run, wait_s=float("inf")),
        concurrency(name, strict=True, lease_duration=lease_s, raise_on_lease_renewal_failure=False),
    ):
        yield
