"""The states of a training job and the moves between them.

    pending ──► running ──► completed
       │  ▲       │  │
       │  │       │  └────► failed ──► pending      started again, from its newest valid checkpoint
       │  └───────┤                                 preempted: it waits to be started again
       │          ▼
       ├───────► paused ──► pending                 resumed
       ├────────────────────► failed
       └──── any of these ──► canceled

`after` folds one event of the trainer into a status. It is a pure function: who follows a training and who reads its
events later see the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from trainyard.errors import Conflict
from trainyard.spec.states import JobState
from trainyard.stores.metrics import Event, TrainingMetrics, TrainingProgress, apply_losses, apply_progress

PENDING, RUNNING, PAUSED = JobState.PENDING, JobState.RUNNING, JobState.PAUSED
COMPLETED, FAILED, CANCELED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELED

STARTING = "starting"

MOVES: dict[JobState, frozenset[JobState]] = {
    PENDING: frozenset({RUNNING, PAUSED, FAILED, CANCELED}),
    RUNNING: frozenset({PENDING, PAUSED, COMPLETED, FAILED, CANCELED}),
    PAUSED: frozenset({PENDING, CANCELED}),
    FAILED: frozenset({PENDING, CANCELED}),
    COMPLETED: frozenset(),
    CANCELED: frozenset(),
}
"""State -> the states that may follow it."""

INSTEAD: dict[JobState, str] = {
    PENDING: "Wait until it runs, or cancel it.",
    RUNNING: "Pause or cancel it, or wait for its end.",
    PAUSED: "Resume or cancel it.",
    FAILED: "Start it again: it continues from its newest checkpoint.",
    COMPLETED: "Start a new job.",
    CANCELED: "Start a new job.",
}


def check_transition(state: JobState, to: JobState) -> JobState:
    """Return the state after a move. Raises `Conflict` (`E-JOB-STATE`) if the move is not allowed."""
    if to not in MOVES[state]:
        allowed = ", ".join(sorted(MOVES[state])) or "nothing"
        raise Conflict(
            f"A job that is {state} cannot become {to}.",
            why=f"From {state} a job goes to: {allowed}.",
            do=INSTEAD[state],
            code="E-JOB-STATE",
        )
    return to


class JobStatus(BaseModel):
    """The state of a job, its progress and its result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: JobState = PENDING
    reason: str = ""
    """Why it failed, paused or was canceled; what it waits for while it is pending."""
    progress: TrainingProgress = TrainingProgress()
    metrics: TrainingMetrics = TrainingMetrics()

    @property
    def step(self) -> int:
        """Step of the progress."""
        return self.progress.step

    @property
    def loss(self) -> float | None:
        """Loss of the progress; None before the first report."""
        return self.progress.loss

    def to(self, state: JobState, reason: str = "") -> JobStatus:
        """Return the status after a move of its state. Raises `Conflict` (`E-JOB-STATE`)."""
        return self.model_copy(update={"state": check_transition(self.state, state), "reason": reason})


def advance_status(status: JobStatus, event: Event) -> JobStatus:
    """Return the status after one event of the trainer. The end of a training is said by its exit, not by an event."""
    name = event["event"]
    if name == "started" and status.state is PENDING:
        return status.to(RUNNING, STARTING)
    if name == "begin" and status.state is RUNNING:
        status = status.model_copy(update={"reason": ""})
    return status.model_copy(
        update={"progress": apply_progress(status.progress, event), "metrics": apply_losses(status.metrics, event)}
    )


def replay_events(events: Iterable[Event]) -> JobStatus:
    """Return the status after all of a trainer's events, restarts included.

    A file that ends without `done` or `stopped` leaves it running: whether the trainer still lives is not in it.
    """
    status = JobStatus()
    for event in events:
        if event["event"] == "started" and status.state is COMPLETED:
            status = JobStatus()  # the same job, requested again
        if event["event"] == "started" and status.state is PAUSED:
            status = status.to(PENDING)
        status = advance_status(status, event)
        if status.state is RUNNING and event["event"] == "early_stop":
            status = status.model_copy(update={"reason": str(event.get("text", ""))})
        elif status.state is RUNNING and event["event"] == "done":
            status = status.to(COMPLETED, status.reason if status.reason != STARTING else "")
        elif status.state is RUNNING and event["event"] == "stopped":
            status = status.to(PAUSED, str(event.get("reason") or "stopped"))
    return status
