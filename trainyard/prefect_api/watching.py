"""Start runs and follow them to their end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, TaskRun, WorkerStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Scheduled
from pydantic_core import to_jsonable_python

from trainyard import tracing
from trainyard.app.run_records import NodeResult, RunRecord, RunResult, read_result
from trainyard.app.services import running, worker_name
from trainyard.callbacks import ignore
from trainyard.compute.events import Event, EventTail
from trainyard.compute.pools import run_environment, run_variables
from trainyard.errors import Conflict, InvalidInput, NotFound, TrainyardError
from trainyard.prefect_api.fan_out import PIECE_TASK
from trainyard.prefect_api.operating import read_run
from trainyard.prefect_api.server import client
from trainyard.prefect_api.states import build_waiting, describe_state, node_state, run_state, waits_for_trainer
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import name_run

OnProgress = Callable[[Event], None]

POLL_S = 0.25
STATE_EVERY_S = 1.0
NO_WORKER_AFTER_S = 15.0


def start_run(
    name: str,
    parameters: Mapping[str, object],
    *,
    settings: Settings,
    tags: tuple[str, ...] = (),
    waits: str = "",
    called: str = "",
    key: str = "",
    queue: str = "",
) -> RunResult:
    """Create a run of a deployment; a worker takes it. Relative data paths mean the caller's working folder.

    With `waits`, the reason why its trainer cannot be used, nobody takes it until it is resumed. `called` is the run's
    name, with a number if another run has it; by default Prefect invents one. A run keeps the name it is created with.
    A second call with the same `key` returns the run of the first. Raises `Conflict` (`E-CONFLICT`) if that one has
    other parameters. `queue` is a work queue of the deployment's pool. Raises `NotFound` (`E-PARAMETER`) for one that
    is not there: Prefect would make it, and no worker would ever take the run.
    """
    environment = run_environment(settings)
    if settings.data_workers:  # a run reads from those that the check was about
        environment["TRAINYARD_DATA_WORKERS"] = json.dumps(settings.data_workers)
    environment |= {tracing.VARIABLE: parent} if (parent := tracing.current_traceparent()) else {}
    state: State[object] | None = build_waiting(waits) if waits else None
    with client() as prefect:
        deployment = find_deployment(prefect, name)
        if queue:
            require_queue(prefect, deployment.work_pool_name or settings.work_pool, queue)
        try:
            run = prefect.create_flow_run_from_deployment(
                deployment.id,
                parameters=dict(parameters),
                state=state,
                name=free_name(prefect, called) if called else None,
                tags=tags,
                job_variables={**run_variables(settings, queue), "env": environment},
                idempotency_key=key or None,
                work_queue_name=queue or None,
            )
        except PrefectHTTPStatusError as error:
            raise refused_parameters_error(name, error) from error
        require_same(run, parameters)
        started = build_started_result(prefect, run, (state.message if state else "") or "started")
        return started.model_copy(update={"state": run_state(run.state)[0]})  # of a run that this key started before


def require_queue(prefect: SyncPrefectClient, pool: str, queue: str) -> None:
    """Raise `NotFound` (`E-PARAMETER`) for a work queue that a pool does not have."""
    try:
        prefect.read_work_queue_by_name(queue, work_pool_name=pool)
    except ObjectNotFound:
        names = sorted(row.name for row in prefect.read_work_queues(work_pool_name=pool))
        raise NotFound(
            f"The work pool {pool} has no queue {queue!r}.", why=f"It has: {', '.join(names)}.",
            do="Name one of them, or add it to host_classes or work_queues and start `trainyard up` again.",
            code="E-PARAMETER",
        ) from None  # fmt: skip


def require_same(run: FlowRun, parameters: Mapping[str, object]) -> None:
    """Refuse another request under a key that was used before. Raises `Conflict` (`E-CONFLICT`)."""
    parameters_json = to_jsonable_python(dict(parameters))
    if any(run.parameters.get(name) != value for name, value in parameters_json.items()):
        raise Conflict(
            f"The idempotency key belongs to the run {run.name}, which was started with other parameters.",
            do="Use a new key for a new run.",
            code="E-CONFLICT",
        )


def free_name(prefect: SyncPrefectClient, name: str) -> str:
    """Return the name, or the name with the first number above those of the runs that have it: `guide-1f2e3d4c-2`."""
    like = FlowRunFilter.model_validate({"name": {"like_": name}})
    runs = prefect.read_flow_runs(flow_run_filter=like, sort=FlowRunSort.EXPECTED_START_TIME_DESC)
    numbered = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    numbers = [int(match[1] or 1) for run in runs if (match := numbered.fullmatch(run.name))]
    return f"{name}-{max(numbers) + 1}" if numbers else name


def build_started_result(prefect: SyncPrefectClient, run: FlowRun, message: str) -> RunResult:
    url = run_url(str(prefect.api_url), run.id)
    run_name = name_run(str(run.id), run.tags)
    return RunResult(id=run_name, run_id=str(run.id), name=run.name, state=JobState.PENDING, message=message, url=url)


def continue_run(run_id: str) -> RunResult:
    """Start an ended run again: finished nodes are reused, a training continues from its last checkpoint.

    Raises `NotFound` (`E-JOB-NOT-FOUND`) and `Conflict` (`E-JOB-STATE`) for a run that has not ended.
    """
    with client() as prefect:
        run = read_run(prefect, run_id)
        if run.state is not None and not run.state.is_final():
            run_name = name_run(run_id, run.tags)
            raise Conflict(
                f"The run {run.name} has not ended: it is {run.state.name}.",
                do=f"Continue a paused run by `trainyard jobs resume {run_name}`; watch or cancel any other.",
                code="E-JOB-STATE",
            )
        prefect.set_flow_run_state(run.id, Scheduled(name="Resuming", message="continued"), force=True)
        return build_started_result(prefect, run, "continued")


def find_deployment(prefect: SyncPrefectClient, name: str) -> DeploymentResponse:
    try:
        return prefect.read_deployment_by_name(name)
    except (ObjectNotFound, ValueError) as error:
        flows = {flow.id: flow.name for flow in prefect.read_flows()}
        deployments = sorted(
            f"{flows.get(deployment.flow_id, '?')}/{deployment.name}" for deployment in prefect.read_deployments()
        )
        raise NotFound(
            f"There is no deployment {name!r} on this server.",
            why=f"It has: {', '.join(deployments) or 'none'}.",
            do="Correct the name, or run `trainyard up`, which writes the deployments of prefect.yaml.",
            code="E-NOT-FOUND",
        ) from error


def refused_parameters_error(name: str, error: PrefectHTTPStatusError) -> TrainyardError:
    """Return the server checked the parameters against the flow's form; its words name the field."""
    try:
        detail = str(error.response.json().get("detail", error.response.text))
    except json.JSONDecodeError:
        detail = error.response.text
    return InvalidInput(
        f"The parameters for {name} are not valid.",
        why=detail,
        do=f"See the parameters by `prefect deployment inspect {name}` or in the form of the Prefect UI.",
        code="E-PARAMETER",
    )


def watch(run_id: str, *, settings: Settings, on_progress: OnProgress = ignore, since: float = 0.0) -> RunResult:
    """Follow a run to its end: its events as they are written, its state from the server once a second.

    A job that waits for its trainer is not waited for.

    `since` is in seconds of the epoch: earlier events, those of earlier attempts, are not reported again.
    """
    folder = settings.runs / run_id
    events = RunRecord(folder).follow()
    state_due, last = 0.0, ""
    started, began = time.monotonic(), time.time()
    with client() as prefect:
        while True:
            report_progress(events, since, on_progress)
            if time.monotonic() >= state_due or has_written_result(folder, began):
                run = prefect.read_flow_run(UUID(run_id))
                state_due = time.monotonic() + STATE_EVERY_S
                waits = run_state(run.state)[0] is JobState.PENDING and time.monotonic() - started > NO_WORKER_AFTER_S
                last = report_state(run, last, on_progress, alone=waits and not worker_runs(prefect, settings))
                if run.state is not None and (run.state.is_final() or waits_for_trainer(run.state)):
                    break
            time.sleep(POLL_S)
        report_progress(events, since, on_progress)
        return read_run_result(prefect, run, folder)


def has_written_result(folder: Path, since: float) -> bool:
    """Return whether a run has written its result since then: it ends soon."""
    try:
        return (folder / "result.json").stat().st_mtime >= since
    except FileNotFoundError:
        return False


def report_progress(events: EventTail, since: float, on_progress: OnProgress) -> None:
    for event in events.read_all():
        if event["time"] >= since:
            on_progress(event)


def worker_runs(prefect: SyncPrefectClient, settings: Settings) -> bool:
    """Return whether a worker of the pool runs: this home's by its process, any other by its heartbeat."""
    if running(settings, "worker") is not None:
        return True
    try:
        workers = prefect.read_workers_for_work_pool(settings.work_pool)
    except ObjectNotFound:
        return False
    own_worker = worker_name(settings)
    return any(worker.status is WorkerStatus.ONLINE and worker.name != own_worker for worker in workers)


def report_state(run: FlowRun, last: str, on_progress: OnProgress, *, alone: bool) -> str:
    """Report a changed state; a run is `alone` while it waits and no worker runs that could take it."""
    text = (
        "pending: no worker runs that could take it; `trainyard up` starts one" if alone else describe_state(run.state)
    )
    if text != last:
        on_progress({"node": "", "event": "state", "time": time.time(), "text": text, "name": run.name})
    return text


def read_run_result(prefect: SyncPrefectClient, run: FlowRun, folder: Path) -> RunResult:
    """Return how a run ended: its own record if it is on this machine, corrected by Prefect's state, which is the
    truth.
    """
    word, detail = run_state(run.state)
    message = (run.state.message if run.state else "") or detail
    seconds = run.total_run_time.total_seconds()
    result = read_result(folder)
    if result is not None and not waits_for_trainer(run.state):
        named = result.id or name_run(str(run.id), run.tags)
        update = {
            "id": named,
            "state": word,
            "detail": detail,
            "message": message,
            "url": run_url(str(prefect.api_url), run.id),
        }
        return result.model_copy(update=update)
    return RunResult(
        id=name_run(str(run.id), run.tags),
        run_id=str(run.id),
        name=run.name,
        state=word,
        detail=detail,
        message=message,
        nodes=tuple(node_results(prefect, run.id)),
        url=run_url(str(prefect.api_url), run.id),
        seconds=round(seconds, 3),
    )


def node_results(prefect: SyncPrefectClient, run_id: UUID) -> list[NodeResult]:
    """Nodes from Prefect's task runs, pieces of a node excepted, the newest of each name: a resumed run leaves rows of
    earlier attempts."""
    newest: dict[str, TaskRun] = {}
    task_runs = prefect.read_task_runs(flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run_id]}}))
    for task_run in sorted(task_runs, key=lambda run: run.created or run.expected_start_time):  # type: ignore[arg-type,return-value]
        if not task_run.task_key.startswith(f"{PIECE_TASK}-"):
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


def run_url(api_url: str, run_id: UUID) -> str:
    """Return the run's page in Prefect's UI."""
    return f"{api_url.rstrip('/').removesuffix('/api')}/runs/flow-run/{run_id}"
