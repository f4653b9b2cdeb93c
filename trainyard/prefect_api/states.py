"""Prefect's states in Trainyard's words: the only map between them; and the desired state of a running run."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json import JSONDecodeError
from typing import Any

import certifi
import httpx
from prefect import settings as prefect_settings
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed, Scheduled
from pydantic import ValidationError

from trainyard.app.run_records import NodeState, RunResult
from trainyard.backends.results import RUNG
from trainyard.compute.supervise import DesiredState
from trainyard.spec.states import NO_TRAINER_DETAIL, NOT_DEPLOYED_DETAIL, JobState
from trainyard.stores.auth_string import auth_header

STATES: dict[StateType, tuple[JobState, str, NodeState]] = {
    StateType.SCHEDULED: (JobState.PENDING, "", NodeState.PENDING),
    StateType.PENDING: (JobState.PENDING, "starting", NodeState.PENDING),
    StateType.RUNNING: (JobState.RUNNING, "", NodeState.RUNNING),
    StateType.PAUSED: (JobState.PAUSED, "", NodeState.RUNNING),
    StateType.CANCELLING: (JobState.RUNNING, "cancelling", NodeState.RUNNING),
    StateType.COMPLETED: (JobState.COMPLETED, "", NodeState.COMPLETED),
    StateType.FAILED: (JobState.FAILED, "", NodeState.FAILED),
    StateType.CRASHED: (JobState.FAILED, "crashed", NodeState.FAILED),
    StateType.CANCELLED: (JobState.CANCELED, "", NodeState.CANCELED),
}
"""Prefect's state types in Trainyard's words: of a run (state, detail), and of a node."""

PREEMPTED, BUDGET_EXCEEDED, NO_TRAINER, SKIPPED = "Preempted", "BudgetExceeded", "NoTrainer", "Skipped"
"""Trainyard's names of states: Scheduled again because the machine was taken back; Failed because the time is up;
Scheduled for a day that never comes, because the trainer is not installed; Completed because its night is done, or of
a node after a gate that said no."""
SPENDING_LIMIT = "SpendingLimit"
"""Failed because a spending limit is reached."""
NOT_DEPLOYED = "NotDeployed"
"""Completed, and the gate refused."""
NEVER = timedelta(days=36_525)
"""A worker takes runs that are due; one that waits for its trainer is due in a hundred years."""

DETAILS = {
    "Late": "late",
    "AwaitingRetry": "awaiting retry",
    "AwaitingConcurrencySlot": "waiting for a slot",
    "Resuming": "resuming",
    PREEMPTED: "preempted",
    BUDGET_EXCEEDED: "budget exceeded",
    SPENDING_LIMIT: "spending limit reached",
    NO_TRAINER: NO_TRAINER_DETAIL,
    SKIPPED: "skipped",
    NOT_DEPLOYED: NOT_DEPLOYED_DETAIL,
}

AT_RUNG = "AtRung"
"""Name of the state of a trial's training that stopped where the sweep compares its trials."""
STOPPED_NAMES = {"pause": "Paused", "cancel": "Cancelled", "preempt": PREEMPTED, RUNG: AT_RUNG}
"""Why a supervised child was stopped -> name of its task's state."""


def run_state(state: State[object] | None) -> tuple[JobState, str]:
    """Return a flow run's state in Trainyard's words."""
    if state is None:
        return JobState.PENDING, ""
    word, detail, _ = STATES[state.type]
    return word, DETAILS.get(state.name or "", detail)


def describe_state(state: State[object] | None) -> str:
    """Return both words in one: `failed (crashed)`."""
    word, detail = run_state(state)
    return f"{word.value} ({detail})" if detail else word.value


def node_state(state: State[object] | None) -> NodeState:
    """Return a task run's state in Trainyard's words; `NotReady`, of a task whose upstream failed, is *skipped*."""
    if state is None:
        return NodeState.PENDING
    named = {
        "NotReady": NodeState.SKIPPED, SKIPPED: NodeState.SKIPPED, "Cached": NodeState.REUSED,
        STOPPED_NAMES["pause"]: NodeState.PAUSED,
    }  # fmt: skip
    return named.get(state.name or "", STATES[state.type][2])


def build_completed(result: RunResult, **data: Any) -> State[Any]:
    """Return the state of a run with its result; its name shows whether the gate refused."""
    name = NOT_DEPLOYED if result.detail == NOT_DEPLOYED_DETAIL else "Completed"
    state: State[Any] = Completed(name=name, message=result.message, **data)
    return state


def build_preempted(reason: str, *, after_s: float) -> State[object]:
    """Return the state of a run that is continued automatically after some seconds."""
    when = datetime.now(UTC) + timedelta(seconds=after_s)
    message = f"Its machine was taken back; it continues automatically. {reason}".strip()
    state: State[object] = Scheduled(name=PREEMPTED, scheduled_time=when, message=message)
    return state


def build_waiting(why: str) -> State[object]:
    """Return the state of a job that was checked and recorded, and that no worker takes until it is resumed."""
    message = f"{why} Then `trainyard jobs resume` starts it."
    state: State[object] = Scheduled(name=NO_TRAINER, scheduled_time=datetime.now(UTC) + NEVER, message=message)
    return state


def waits_for_trainer(state: State[object] | None) -> bool:
    return state is not None and state.is_scheduled() and state.name == NO_TRAINER


WANTED_EVERY_S = 1.0
"""How often a training asks Prefect whether it should continue (a pause is noticed within this time)."""
ASK_TIMEOUT_S = 3.0
"""A server that does not answer must not block the loop that watches a child."""

WANTED = dict.fromkeys((StateType.CANCELLING, StateType.CANCELLED), DesiredState.CANCEL)
WANTED[StateType.PAUSED] = DesiredState.PAUSE
"""What a state of the run asks of its training; any other asks it to run."""
INTERRUPTED = threading.Event()
"""This process was asked to end by SIGTERM: a machine is taken back, or a worker is stopped."""


def make_state_reader(run_id: str, *, first_after_s: float = 0.0) -> Callable[[], DesiredState]:
    """Return a function that says whether the run should continue; it asks the server at most once a second.

    A server that does not answer for a while changes nothing: two hours of training outlive a restart of it.
    """
    asked_at, answer = time.monotonic() - WANTED_EVERY_S + first_after_s, DesiredState.RUN
    asked_after_interrupt = False

    def read_desired_state() -> DesiredState:
        nonlocal asked_at, answer, asked_after_interrupt
        interrupted = INTERRUPTED.is_set() and not asked_after_interrupt
        if interrupted or time.monotonic() - asked_at >= WANTED_EVERY_S:
            asked_at, asked_after_interrupt = time.monotonic(), INTERRUPTED.is_set()
            state = read_state(run_id)
            answer = answer if state is None else WANTED.get(state.type, DesiredState.RUN)
        return DesiredState.PREEMPT if answer is DesiredState.RUN and INTERRUPTED.is_set() else answer

    return read_desired_state


def read_state(run_id: str) -> State | None:
    """Return the run's state by one quick question; None if the server is away or does not know the run."""
    try:
        answer = asker(str(prefect_settings.PREFECT_API_URL.value()).rstrip("/")).get(f"/flow_runs/{run_id}")
        return State.model_validate(answer.raise_for_status().json()["state"])
    except (httpx.HTTPError, ValidationError, JSONDecodeError):
        return None


@lru_cache(maxsize=2)
def asker(api_url: str) -> httpx.Client:
    """Return a connection that stays open for this process.

    Prefect's own client would retry for minutes when a server is away, which blocks the loop that watches a child;
    and opening one, or configuring it not to retry, takes 30 to 100 ms each time.
    """
    headers, auth = {}, prefect_settings.PREFECT_API_AUTH_STRING.value()
    if auth:  # first, as in Prefect's own client: a key of Prefect Cloud may be in the environment, too
        headers = auth_header(auth)
    elif key := prefect_settings.PREFECT_API_KEY.value():
        headers = {"Authorization": f"Bearer {key}"}
    trusted = prefect_settings.PREFECT_API_SSL_CERT_FILE.value() or certifi.where()
    verify = ssl.create_default_context(cafile=trusted) if api_url.startswith("https") else False
    if prefect_settings.PREFECT_API_TLS_INSECURE_SKIP_VERIFY.value():
        verify = False
    return httpx.Client(base_url=api_url, headers=headers, timeout=ASK_TIMEOUT_S, verify=verify)
