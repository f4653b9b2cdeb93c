"""Pause, resume and cancel runs; settle runs whose process is gone.

Every verb reads the run's state first and refuses what is impossible with a reason. Two operators may act at once, so
the server's answer decides, not that state.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed, Scheduled, Suspended

from trainyard.app.jobs.logs import WORKER_LABEL, live_process
from trainyard.app.run_records import RunRecord, read_result
from trainyard.app.training_logs import TrainingLogs, find_left_trainings, has_no_progress
from trainyard.errors import Conflict, NotFound
from trainyard.prefect_api.server import client
from trainyard.prefect_api.states import build_completed, build_preempted, describe_state, run_state, waits_for_trainer
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import name_run

LEAVING_S = 20.0
"""How long `resume` waits for a run that is still saving, and for the worker's message of its end."""
WORKERS_WORD = "Flow run was cancelled"
"""Prefix of the message with which Prefect's worker ends a cancellation."""
"""The label by which a worker signs a run, after it wrote Pending and before it starts the process."""
STARTING = timedelta(seconds=120)
"""From Pending to a process takes a worker some seconds."""
RECENT = timedelta(days=3)
ENDED = (StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)


def read_run(prefect: SyncPrefectClient, run_id: str) -> FlowRun:
    """Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
    try:
        return prefect.read_flow_run(UUID(run_id))
    except ObjectNotFound as error:
        raise NotFound(
            f"There is no run {run_id} on this server.",
            do="List the runs by `trainyard jobs list`.",
            code="E-JOB-NOT-FOUND",
        ) from error


def state_of_run(run_id: str) -> JobState:
    """Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
    with client() as prefect:
        return run_state(read_run(prefect, run_id).state)[0]


def refusal_error(run: FlowRun, verb: str, do: str) -> Conflict:
    return Conflict(
        f"The run {run.name} cannot be {verb}: it is {describe_state(run.state)}.", do=do, code="E-JOB-STATE"
    )


def find_id(run: FlowRun) -> str:
    """Return what names a run to users: the job's id, or the run's own where no trainer is part of it."""
    return name_run(str(run.id), run.tags)


def pause_run(run_id: str) -> FlowRun:
    """Suspend a running run: its training saves at the next step and its process ends; nothing times out.

    Raises `Conflict` (`E-JOB-STATE`) unless it runs, `NotFound` (`E-JOB-NOT-FOUND`).
    """
    with client() as prefect:
        run = read_run(prefect, run_id)
        if run.state is None or run.state.type is not StateType.RUNNING:
            raise refusal_error(run, "paused", pausing_advice(run))
        paused: State[object] = Suspended(pause_key=str(uuid4()), message="paused by an operator")
        done = prefect.set_flow_run_state(run.id, paused)
        run = read_run(prefect, run_id)
        if done.status is not SetStateStatus.ACCEPT:
            raise refusal_error(run, "paused", pausing_advice(run))
        return run


def pausing_advice(run: FlowRun) -> str:
    kind = run.state.type if run.state else None
    if kind is StateType.PAUSED:
        return f"`trainyard jobs resume {find_id(run)}` continues it."
    if kind in (StateType.SCHEDULED, StateType.PENDING, None):
        return "Wait until it runs, or cancel it."
    return "Only a run that runs can be paused."


def resume_run(run_id: str) -> FlowRun:
    """Continue a run that is paused, failed, crashed or cancelled: finished nodes are reused, a training continues.

    One that waits for its trainer is started. A run that is still saving is waited for.

    Raises `Conflict` (`E-JOB-STATE`), `NotFound` (`E-JOB-NOT-FOUND`).
    """
    with client() as prefect:
        run = read_run(prefect, run_id)
        kind = run.state.type if run.state else None
        if kind is StateType.PAUSED:
            require_gone(run)
            accepted = prefect.resume_flow_run(run.id).status is SetStateStatus.ACCEPT
        elif kind in ENDED or waits_for_trainer(run.state):
            wait_for_worker(prefect, run)
            resuming: State[object] = Scheduled(name="Resuming", message="continued")
            accepted = prefect.set_flow_run_state(run.id, resuming, force=True).status is SetStateStatus.ACCEPT
        else:
            accepted = False
        run = read_run(prefect, run_id) if accepted or kind is StateType.PAUSED else run
        if not accepted:
            raise refusal_error(
                run, "resumed", "Only a run that is paused or has ended without its result can be resumed."
            )
        return run


def continue_unless_running(run_id: str, settings: Settings) -> str:
    """Continue a run wherever it was left; return what it is doing now: running, completed or continued.

    Raises `Conflict` (`E-JOB-STATE`) while it is still saving, `NotFound` (`E-JOB-NOT-FOUND`).
    """
    with client() as prefect:
        run = read_run(prefect, run_id)
    kind = run.state.type if run.state else None
    if kind is StateType.COMPLETED:
        return "completed"
    has_pid = run.infrastructure_pid and not is_in_container(run)
    if kind is StateType.RUNNING and has_pid and find_process(run) is None:
        write_end_state(run, settings)  # its process was killed, and nobody has noticed yet
        kind = StateType.CRASHED
    if kind in (*ENDED, StateType.PAUSED):
        resume_run(run_id)
        return "continued"
    return "running"


def require_gone(run: FlowRun) -> None:
    """Wait for the process of a paused run to end. Raises `Conflict` (`E-JOB-STATE`) if it takes too long."""
    deadline = time.monotonic() + LEAVING_S
    while (process := find_process(run)) is not None:
        if time.monotonic() > deadline:
            raise Conflict(
                f"The run {run.name} is still pausing: its process {process.pid} has not ended.",
                why="It finishes its step and saves; a node that is not a trainer runs to its end.",
                do="Resume it in a moment, or cancel it.",
                code="E-JOB-STATE",
            )
        time.sleep(0.2)


def wait_for_worker(prefect: SyncPrefectClient, run: FlowRun) -> None:
    """Wait until a worker that cancels the run has said so.

    Prefect's worker writes `Cancelled` when the process is gone, some seconds after the run itself did. It does not
    look at what the state is by then, and would cancel a run that was resumed in between.
    """
    while run.state is not None and run.state.type is StateType.CANCELLED:
        states = sorted(prefect.read_flow_run_states(run.id), key=lambda state: state.timestamp)
        canceled_at = next((state.timestamp for state in reversed(states) if state.type is StateType.CANCELLING), None)
        worker_wrote = any(
            state.message and state.message.startswith(WORKERS_WORD)
            for state in states
            if canceled_at and state.timestamp > canceled_at
        )
        if (
            canceled_at is None
            or worker_wrote
            or datetime.now(UTC) - run.state.timestamp > timedelta(seconds=LEAVING_S)
        ):
            return
        time.sleep(0.3)
        run = read_run(prefect, str(run.id))


def cancel_run(run_id: str) -> FlowRun:
    """End a run: a worker signals its process, its training saves within 30 s. One without a process ends at once.

    Raises `Conflict` (`E-JOB-STATE`) when it has ended or is being cancelled, `NotFound` (`E-JOB-NOT-FOUND`).
    """
    with client() as prefect:
        run = read_run(prefect, run_id)
        kind = run.state.type if run.state else None
        if kind is StateType.CANCELLING:
            raise refusal_error(run, "cancelled", "It is on its way: its training saves first.")
        if run.state is not None and run.state.is_final():
            raise refusal_error(run, "cancelled", "There is nothing left to end.")
        waits = kind in (StateType.SCHEDULED, StateType.PAUSED, None) and find_process(run) is None
        if waits:
            was = "it was paused" if kind is StateType.PAUSED else "nothing of it ran"
            prefect.set_flow_run_state(run.id, Cancelled(message=f"cancelled while {was}"), force=True)
        else:
            # The answer may be `Cancelled` already, where the server knows that the run has no process.
            prefect.set_flow_run_state(run.id, Cancelling(message="cancelled by an operator"))
        return read_run(prefect, run_id)


# Runs whose process is gone


def crash_dead_runs(settings: Settings, worker_name: str) -> list[str]:
    """Settle the runs whose process on this machine is gone, and return their ids.

    Called before a worker starts: runs that ended with the previous worker would read Running until the automation
    notices the missing heartbeats. No other process starts runs on this host then, so a run that is only pending is
    dead, too.
    """
    dead = list_dead_runs(settings, worker_name, [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING])
    for run in dead:
        write_end_state(run, settings)
    return [str(run.id) for run in dead]


def list_dead_runs(settings: Settings, worker_name: str, states: list[StateType]) -> list[FlowRun]:
    """Runs of this host that are in one of the states and have no process; one in a container has none here."""
    runs = list_runs(settings, worker_name, states)
    return [run for run in runs if not is_in_container(run) and not find_process(run)]


def list_never_started(settings: Settings, worker_name: str) -> list[FlowRun]:
    """Runs that have been pending for `STARTING` and have no process.

    A worker writes Pending first, then its name, then the process. One that is killed in between, or whose server is,
    leaves a run that nobody starts. No other worker takes it: Pending means that somebody has.
    """
    limit = datetime.now(UTC) - STARTING
    runs = [run for run in runs_of_pool(settings, [StateType.PENDING]) if run.state and run.state.timestamp < limit]
    stuck = [run for run in runs if not is_in_container(run) and not find_process(run)]
    return [run for run in stuck if run.labels.get(WORKER_LABEL, worker_name) == worker_name]


def schedule_again(run: FlowRun) -> None:
    """Give a run whose worker took it and never started it to the next worker."""
    with client() as prefect:
        state: State[object] = Scheduled(message="The worker that had taken it ended before it started it.")
        prefect.set_flow_run_state(run.id, state, force=True)


def list_runs(settings: Settings, worker_name: str, states: list[StateType], *, recent: bool = False) -> list[FlowRun]:
    """Runs of this host that are in one of the states; with `recent`, only those that started lately."""
    runs = runs_of_pool(settings, states, recent=recent)
    return [run for run in runs if run.labels.get(WORKER_LABEL) == worker_name]


def runs_of_pool(settings: Settings, states: list[StateType], *, recent: bool = False) -> list[FlowRun]:
    """Runs of the work pool, on any host, that are in one of the states."""
    run_filter: dict[str, object] = {"state": {"type": {"any_": states}}}
    if recent:
        run_filter["start_time"] = {"after_": datetime.now(UTC) - RECENT}
    pool = WorkPoolFilter.model_validate({"name": {"any_": [settings.work_pool]}})
    with client() as prefect:
        return prefect.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(run_filter), work_pool_filter=pool)


def write_end_state(run: FlowRun, settings: Settings) -> None:
    """Write the end of a run whose process is gone: cancelled if that was wanted, else crashed.

    One that had its result has completed: its process could not report that to a server that was away. One whose
    trainers saved before they ended was preempted: it is scheduled again.
    """
    folder = settings.runs / str(run.id)
    left, result = find_left_trainings(folder), read_result(folder)
    state: State[object]
    if result is not None and result.succeeded:
        state = build_completed(result)
    elif run.state is not None and run.state.type is StateType.CANCELLING:
        state = Cancelled(message="Its process ended before it could save; the last checkpoint is kept.")
    elif left and not has_no_progress(folder):
        state = build_preempted(note_preemption(folder, left), after_s=0)
    else:
        state = Crashed(
            message=f"Its process ended. Next: `trainyard jobs resume {find_id(run)} --watch` continues it."
        )
    with client() as prefect:
        prefect.set_flow_run_state(run.id, state, force=True)


def is_in_container(run: FlowRun) -> bool:
    """Return whether a run is a job of Kubernetes or Vertex AI: instead of a pid it has the job's name."""
    return bool(run.infrastructure_pid) and not str(run.infrastructure_pid).isdecimal()


def find_process(run: FlowRun) -> psutil.Process | None:
    """Return the live process of a run of this machine."""
    return live_process(run.labels, run.infrastructure_pid)


def note_preemption(run_folder: Path, works: list[TrainingLogs]) -> str:
    """Record in the run's events that its trainers were preempted, and print it."""
    messages = []
    for work in works:
        message = f"The training stopped at step {work.progress().step}; its checkpoint is kept."
        RunRecord(run_folder).emit(work.node, "stopped", message=message, reason="preempt")
        messages.append(f"{work.node}: {message}")
    return "; ".join(messages)
