"""Endings of an unfinished run: paused, cancelled, or its machine taken back.

A pause is Prefect's suspension: the run's state says so, and this process ends without changing the state. SIGTERM is
handled here while a chain is running, so that trainings save first: then a run that is being cancelled ends as
cancelled, and any other run is scheduled again and continued by the next worker that takes it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause
from prefect.states import Cancelled, Crashed

from trainyard.app.run_records import NodeResult, NodeState, RunRecord, read_events
from trainyard.app.training_logs import has_no_progress
from trainyard.compute.supervise import DesiredState
from trainyard.prefect_api.states import INTERRUPTED, build_preempted, build_waiting, read_state

CONTINUE_AFTER_S = 20.0
"""Delay of a preempted run, so that no worker that is shutting down takes it; workers look 10 s ahead."""
INTERRUPT_GRACE_S = 22.0
"""Time for the nodes to save, of the 30 s between a worker's SIGTERM and its SIGKILL; then the state is written."""
SERVER_TRIES_S, OUTAGE_S = 6.0, 600.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Take SIGTERM as a request to save and go. Outside the main thread (a test, a notebook) nothing is changed."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    try:
        loop.add_signal_handler(signal.SIGTERM, INTERRUPTED.set)
    except (RuntimeError, ValueError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        INTERRUPTED.clear()


def was_stopped(nodes: tuple[NodeResult, ...]) -> bool:
    """Return whether the run was asked to stop, rather than finished or failed."""
    return any(node.state is NodeState.CANCELED for node in nodes)


async def leave(run_id: str, nodes: tuple[NodeResult, ...], record: RunRecord, unfinished: bool) -> State[Any]:
    """End a run that was stopped: return the state of a cancelled one, or end this process if the run will continue.

    Raises Prefect's `Pause`, which leaves the run's state on the server unchanged.
    """
    state = await server_state(run_id)
    text = "; ".join(f"{node.id}: {node.message}" for node in nodes if node.state is NodeState.CANCELED)
    ending: State[Any]
    if state is None:
        ending = Crashed(message=f"The server did not answer when the run was stopped. {text}")
        go(ending, unfinished)
    elif state.type in (StateType.CANCELLING, StateType.CANCELLED) or ended_at_provider(nodes, record):
        ending = Cancelled(message=text)
    elif state.type is not StateType.RUNNING:
        ending = state  # paused, or already resumed by somebody: it is not this process's any more
        go(ending, unfinished)
    elif has_no_progress(record.folder):
        ending = Crashed(message=f"Stopped from outside again and again without a further step. {text}")
    else:
        ending = await schedule_again(run_id, text)
        go(ending, unfinished)
    if unfinished:
        await set_state(run_id, ending)
        os._exit(0)
    return ending


def ended_at_provider(nodes: tuple[NodeResult, ...], record: RunRecord) -> bool:
    """Return whether a trainer was started only to end its job at a provider, as a cancel of a paused run asks."""
    reasons = {
        event["node"]: event.get("reason") for event in read_events(record.folder) if event["event"] == "stopped"
    }
    return any(node.state is NodeState.CANCELED and reasons.get(node.id) == DesiredState.CANCEL for node in nodes)


def go(state: State[Any], unfinished: bool) -> None:
    """End this process, leaving the run's state alone; at once if a node cannot be stopped.

    What such a node was making is not in the store; the process that continues the run makes it again.
    """
    if unfinished:
        os._exit(0)
    raise Pause(state=state)


async def server_state(run_id: str) -> State[Any] | None:
    """Return the run's state; None when the server does not answer for some seconds."""
    deadline = time.monotonic() + SERVER_TRIES_S
    while True:
        state = await asyncio.to_thread(read_state, run_id)
        if state is not None or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.5)


async def wait_for_server(run_id: str) -> None:
    """Wait some minutes for a server that is away.

    Prefect's own client retries with doubling pauses: after an outage of two minutes a finished run would read
    Running for several more.
    """
    deadline = time.monotonic() + OUTAGE_S
    while await asyncio.to_thread(read_state, run_id) is None and time.monotonic() < deadline:
        await asyncio.sleep(1.0)


async def schedule_again(run_id: str, message: str) -> State[Any]:
    state = build_preempted(message, after_s=CONTINUE_AFTER_S)
    await set_state(run_id, state)
    return state


async def wait_for_trainer(run_id: str, why: str) -> NoReturn:
    """Leave the run pending until it is resumed. Raises Prefect's `Pause`, which ends this process."""
    state = build_waiting(why)
    await set_state(run_id, state)
    raise Pause(state=state)


async def set_state(run_id: str, state: State[Any]) -> None:
    async with get_client() as client:
        await client.set_flow_run_state(UUID(run_id), state, force=True)
