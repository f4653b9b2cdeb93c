"""A session's supervised child, seen from the process that starts it. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from trainyard.backends import programs
from trainyard.backends.base import check
from trainyard.backends.job import TrainingJob, prepare_job
from trainyard.backends.sessions.records import (
    SessionRecord,
    SessionState,
    folder_of_session,
    remove_socket,
    write_status,
)
from trainyard.callbacks import ignore
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.events import Event
from trainyard.compute.supervise import DesiredState, Outcome, Status, keep_running, supervise
from trainyard.errors import InvalidInput, TrainyardError, from_fields
from trainyard.inherited import key_variable
from trainyard.settings import Settings
from trainyard.spec.axes.strategies import Strategy
from trainyard.stores.whole import write_json_durably

PROGRAM = "trainyard.backends.native.sessions.program:serve"
SHARED_PROGRAM = "trainyard.backends.native.sessions.ranks:train"
"""Of a session that several processes share."""
POLL_S = 0.2
COUNTERS = ("global_step", "op_seq", "saved_op_seq", "next_op_seq", "resumed_after")
"""What events say of how far a session is."""


class SessionJob(BaseModel):
    """The input of a session's child: `spec.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session: str
    job: TrainingJob
    """Without data."""
    idle_s: int
    autosave_s: int
    key: str = ""
    """Where the key of its checkpoints is, as the setting `checkpoint_key` says."""


def session_job(
    record: SessionRecord, settings: Settings, *, devices: tuple[int, ...] = (0,), run: str = ""
) -> SessionJob:
    """Return the job of a session on this machine. Raises what `prepare_job` raises for a base that is not here."""
    base = record.config.base_model or settings.default_base_model
    job = prepare_job(record.config, base, settings, data={}, devices=devices, run=run, node=record.id)
    return SessionJob(
        session=record.id, job=job, idle_s=record.idle_s, autosave_s=record.autosave_s, key=settings.checkpoint_key
    )  # fmt: skip


def run_session(
    record: SessionRecord,
    settings: Settings,
    *,
    devices: tuple[int, ...] = (0,),
    run: str = "",
    desired_state: Callable[[], DesiredState] = keep_running,
    on_event: Callable[[Event], None] = ignore,
    poll_s: float = POLL_S,
) -> Outcome:
    """Run a session's child to its end, and keep its status up to date. The caller has its lock.

    Raises `Unavailable` and `Refused` where the native backend cannot run it here. An error of the child is in the
    outcome.
    """
    folder = folder_of_session(settings, record.id)
    session = session_job(record, settings, devices=devices, run=run)
    check(session.job, settings)
    write_json_durably(folder / SPEC_FILE, session.model_dump(mode="json"))
    remove_socket(folder)
    write_status(folder, SessionState.PENDING, "loading the model", run)
    last: dict[str, object] = {}

    def note(event: Event) -> None:
        last.update({name: event[name] for name in COUNTERS if name in event})
        if event["event"] == "open":
            write_status(folder, SessionState.OPEN, run=run)
        on_event(event)

    is_alone = session.job.config.launch.strategy is Strategy.SINGLE
    outcome = supervise(
        programs.command(session.job, PROGRAM if is_alone else SHARED_PROGRAM, folder), folder,
        env={**({} if is_alone else programs.environment(session.job)), **key_environment(settings)},
        desired_state=desired_state, on_event=note, budget_s=record.budget_s,
        poll_s=poll_s,
    )  # fmt: skip
    remove_socket(folder)
    write_status(folder, *ending(outcome), run, last=last)
    return outcome


def key_environment(settings: Settings) -> dict[str, str]:
    """The variable with the key of the checkpoints, for the child alone. Raises `InvalidInput` (`E-PARAMETER`)."""
    name = key_variable(settings.checkpoint_key)
    if name and not os.environ.get(name):
        raise InvalidInput(
            f"checkpoint_key of trainyard.toml names the variable {name}, which is not set.",
            do="Set it where `trainyard up` is called, which passes it to the worker.", code="E-PARAMETER",
        )  # fmt: skip
    return {name: os.environ[name]} if name else {}


def ending(outcome: Outcome) -> tuple[SessionState, str]:
    """Return the state of a session whose child has ended, and why it did."""
    if outcome.status is Status.FAILED:
        error = build_error(outcome)
        killed = outcome.exit_code < 0
        return (SessionState.LOST if killed else SessionState.FAILED), f"{error.code}: {error.what}"
    return SessionState.ENDED, "closed" if outcome.status is Status.DONE else outcome.reason


def build_error(outcome: Outcome) -> TrainyardError:
    return from_fields(outcome.error or {"what": "The session ended."})
