"""Sessions on a real server and worker: opened, called, killed, resumed, idle, cancelled; one has the device."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psutil
import pytest

from tests.flows.real_stack import Stack, wait_until
from tests.unit.backends.session_host import ROWS
from trainyard.backends.sessions.records import folder_of_session
from trainyard.compute.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]

SETTINGS = ("-p", "hyperparameters.precision=fp32", "-p", "hyperparameters.learning_rate=0.01", "-p", "autosave_s=1")


def create(stack: Stack, *more: str) -> str:
    return str(stack.json("sessions", "create", *SETTINGS, *more, "--wait")["id"])


def show(stack: Stack, session: str) -> dict[str, Any]:
    return stack.json("sessions", "show", session)


def train_step(stack: Stack, session: str) -> float:
    rows = [word for row in ROWS for word in ("--row", json.dumps(row))]
    forward = stack.json("sessions", "forward", session, *rows)
    stack.json("sessions", "backward", session, "--forward-id", forward["forward_id"])
    stack.json("sessions", "step", session)
    stack.json("sessions", "zero-grad", session)
    return float(forward["loss"])


def child(stack: Stack, session: str) -> int:
    events = read_events(folder_of_session(stack.settings, session) / "events.jsonl")
    return int([event for event in events if event["event"] == "started"][-1]["pid"])


def test_a_session_is_a_run_that_holds_the_device(stack: Stack) -> None:
    session = create(stack)
    detail = show(stack, session)
    assert detail["state"] == "open"
    assert not stack.slot_is_free()
    run = stack.request_prefect(f"flow_runs/{detail['run']}")
    assert {"session", session, "tenant:default"} <= set(run["tags"])
    assert run["state"]["type"] == "RUNNING"
    losses = [train_step(stack, session) for _ in range(3)]
    assert losses[-1] < losses[0]
    closed = stack.json("sessions", "close", session)
    assert (closed["state"], closed["detail"], closed["global_step"]) == ("ended", "closed", 3)
    stack.wait_for_state(detail["run"], "COMPLETED", seconds=60)
    assert stack.slot_is_free()
    again = stack.command("sessions", "step", session)
    assert again.returncode == 4
    assert "E-SESSION-STATE" in again.stderr


def test_a_killed_session_is_resumed_where_it_was_saved(stack: Stack) -> None:
    session = create(stack)
    train_step(stack, session)
    wait_until(lambda: show(stack, session)["saved_op_seq"] == 4, 60, "the checkpoint")
    first = show(stack, session)["run"]
    os.kill(child(stack, session), signal.SIGKILL)
    stack.wait_for_state(first, "FAILED", seconds=60)
    assert "E-KILLED" in stack.state_of(first)["message"]
    lost = show(stack, session)
    assert (lost["state"], lost["saved_op_seq"]) == ("lost", 4)
    resumed = stack.json("sessions", "resume", session, "--wait")
    assert (resumed["state"], resumed["resumed_after"], resumed["next_op_seq"], resumed["global_step"]) == (
        "open", 4, 5, 1,
    )  # fmt: skip
    assert resumed["run"] != first
    second = stack.command("sessions", "resume", session)
    assert second.returncode == 4
    assert "E-SESSION-STATE" in second.stderr
    train_step(stack, session)
    assert stack.json("sessions", "close", session)["global_step"] == 2


def test_a_session_that_nobody_calls_frees_the_device(stack: Stack) -> None:
    session = create(stack, "-p", "idle_s=2")
    run = show(stack, session)["run"]
    stack.wait_for_state(run, "COMPLETED", seconds=60)
    ended = show(stack, session)
    assert (ended["state"], ended["detail"]) == ("ended", "idle")
    assert stack.slot_is_free()


def test_the_flow_that_dies_takes_its_process_with_it(stack: Stack) -> None:
    session = create(stack)
    train_step(stack, session)
    run, pid = show(stack, session)["run"], child(stack, session)
    stack.flow_process(run).send_signal(signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), 60, "the child's end")
    wait_until(lambda: show(stack, session)["state"] in ("lost", "ended"), 30)
    resumed = stack.json("sessions", "resume", session, "--wait")
    assert (resumed["global_step"], resumed["resumed_after"]) == (1, 4), "an orphan saves before it ends"
    stack.json("sessions", "close", session)


def test_a_cancelled_run_saves_its_session_and_a_waiting_one_is_cancelled(stack: Stack) -> None:
    session = create(stack)
    train_step(stack, session)
    waiting = str(stack.json("sessions", "create", *SETTINGS)["id"])
    wait_until(lambda: show(stack, waiting)["detail"] == "waiting for the device", 60)
    closed = stack.json("sessions", "close", waiting)
    assert closed["state"] in ("ended", "pending")
    wait_until(lambda: show(stack, waiting)["state"] == "ended", 60)
    run = show(stack, session)["run"]
    stack.command("jobs", "cancel", run)
    ended = stack.state_of(run)["type"]
    if ended not in ("CANCELLED", "CANCELLING"):
        stack.json("sessions", "close", session)
    wait_until(lambda: show(stack, session)["state"] == "ended", 60)
    assert show(stack, session)["saved_op_seq"] == 4
