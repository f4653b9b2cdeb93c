"""Prefect's states in Trainyard's words: the only map between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed, Scheduled

from trainyard.app.run_records import NodeState, RunResult
from trainyard.backends.results import RUNG
from trainyard.spec.states import NO_TRAINER_DETAIL, NOT_DEPLOYED_DETAIL, JobState

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
NOT_DEPLOYED = "NotDeployed"
"""Completed, and the gate said no."""
NEVER = timedelta(days=36_525)
"""A worker takes runs that are due; one that waits for its trainer is due in a hundred years."""

DETAILS = {
    "Late": "late",
    "AwaitingRetry": "awaiting retry",
    "AwaitingConcurrencySlot": "waiting for a slot",
    "Resuming": "resuming",
    PREEMPTED: "preempted",
    BUDGET_EXCEEDED: "budget exceeded",
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
    """Return the state of a run that has its result; its name says whether the gate said no."""
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
