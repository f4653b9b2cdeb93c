"""What a run is asked and granted while it works: whether to go on, the device slot; and what became of dead runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import psutil
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Crashed

from trainyard.api.runs.server import client, ensure_limit, limit_name
from trainyard.compute.lease import device_lock
from trainyard.compute.supervise import Wanted
from trainyard.errors import TrainyardError
from trainyard.settings import Settings

WANTED_EVERY_S = 2.0
"""How often a training asks Prefect whether it should go on (a pause is noticed within this)."""


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
