"""The states of a job: which moves there are, and what a trainer's events say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trainyard.backends.states import (
    CANCELED,
    COMPLETED,
    FAILED,
    INSTEAD,
    MOVES,
    PAUSED,
    PENDING,
    RUNNING,
    JobStatus,
    advance_status,
    check_transition,
    replay_events,
)
from trainyard.errors import Conflict
from trainyard.spec.states import JobState

pytestmark = pytest.mark.integration


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": 1.0, **fields}


def test_every_state_has_its_moves_and_its_advice() -> None:
    assert set(MOVES) == set(INSTEAD) == set(JobState)
    assert {state for state in JobState if not MOVES[state]} == {state for state in JobState if state.is_final}
    assert {COMPLETED, CANCELED} == {state for state in JobState if state.is_final}
    assert all(CANCELED in MOVES[state] for state in JobState if not state.is_final)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("to", JobState)
def test_a_move_is_made_or_refused_with_what_to_do(state: JobState, to: JobState) -> None:
    if to in MOVES[state]:
        assert check_transition(state, to) is to
    else:
        with pytest.raises(Conflict, match=rf"E-JOB-STATE: A job that is {state} cannot become {to}\. .* Do: "):
            check_transition(state, to)


def test_events_become_progress_and_metrics() -> None:
    status = replay_events(
        [
            event("started", pid=1),
            event("begin", total_steps=4, total_epochs=2.0, restarted_from=None),
            event("progress", step=1, epoch=0.5, loss=3.0, learning_rate=1e-3),
            event("progress", step=2, epoch=1.0, loss=2.5, learning_rate=5e-4, eval_loss=2.7),
        ]
    )
    assert status.state is RUNNING
    assert (status.progress.step, status.progress.total_steps, status.progress.total_epochs) == (2, 4, 2.0)
    assert (status.progress.loss, status.progress.learning_rate) == (2.5, 5e-4)
    assert (status.metrics.train_loss, status.metrics.eval_loss) == (2.5, 2.7)


@pytest.mark.parametrize(
    ("names", "state"),
    [
        (["started"], RUNNING),
        (["started", "done"], COMPLETED),
        (["started", "stopped"], PAUSED),
        (["started", "stopped", "started"], RUNNING),
        (["started", "started", "done"], COMPLETED),  # it was killed, and started again
        (["started", "done", "started"], RUNNING),  # asked for anew
        (["progress"], PENDING),
        (["started", "unknown"], RUNNING),
    ],
)
def test_starts_and_ends_are_replayed(names: list[str], state: JobState) -> None:
    assert replay_events(map(event, names)).state is state


def test_an_early_stop_is_in_the_reason_of_a_completed_job() -> None:
    text = "stopped early at step 6, best at step 4"
    events = [event("started"), event("begin"), event("early_stop", step=6, best_step=4, text=text), event("done")]
    assert (replay_events(events).state, replay_events(events).reason) == (COMPLETED, text)
    assert replay_events([event("started"), event("done")]).reason == ""


def test_garbage_in_an_event_is_no_progress() -> None:
    status = advance_status(JobStatus(state=RUNNING), event("progress", step="seven", loss=None, learning_rate=[1]))
    assert status.progress.step == 0
    assert status.progress.loss is None


class Job(RuleBasedStateMachine):
    """A job that operators, a trainer and an outage act on in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.seen = JobStatus(), [PENDING]

    def go(self, to: JobState) -> None:
        before = self.status
        if to not in MOVES[before.state]:
            with pytest.raises(Conflict, match="E-JOB-STATE"):
                before.to(to, "because")
            return
        self.status = before.to(to, "because")
        assert (self.status.progress, self.status.metrics) == (before.progress, before.metrics)
        self.seen.append(to)

    @rule(to=st.sampled_from(JobState))
    def move_state(self, to: JobState) -> None:
        self.go(to)

    @rule()
    def the_trainer_starts(self) -> None:
        before = self.status.state
        self.status = advance_status(self.status, event("started"))
        if before is PENDING:
            self.seen.append(RUNNING)
        assert self.status.state is (RUNNING if before is PENDING else before)

    @precondition(lambda self: self.status.state is RUNNING)
    @rule(step=st.integers(0, 100), loss=st.floats(0, 10))
    def the_trainer_reports(self, step: int, loss: float) -> None:
        self.status = advance_status(self.status, event("progress", step=step, loss=loss))
        assert (self.status.progress.step, self.status.metrics.train_loss) == (step, loss)

    @precondition(lambda self: self.status.state in (PAUSED, FAILED))
    @rule()
    def start_again(self) -> None:
        self.go(PENDING)
        self.the_trainer_starts()
        assert self.status.state is RUNNING

    @invariant()
    def check_final(self) -> None:
        assert all(not state.is_final for state in self.seen[:-1])
        assert self.status.state is self.seen[-1]

    @invariant()
    def check_completion(self) -> None:
        ends = [before for before, state in zip(self.seen, self.seen[1:], strict=False) if state is COMPLETED]
        assert set(ends) <= {RUNNING}


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
