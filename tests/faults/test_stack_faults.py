"""Kills of a run's process, of its worker and of the server: nothing runs twice with effect, nothing is left behind.

One of each by default. `make faults` repeats them: cancel 8 times, flow 8, worker 4, server 2 of each outage.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.flows.real_stack import STEPS, Stack, kill_tree, wait_until
from trainyard.app.services import running

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack faults")]

REPEATS = int(os.environ.get("REPEATS", "1"))


def seeds(most: int) -> range:
    return range(min(REPEATS, most))


@pytest.fixture(scope="module")
def whole(stack: Stack) -> str:
    """The weights of a run that nobody has disturbed."""
    return stack.finish(stack.start_job())


def start_job(stack: Stack, seed: int) -> str:
    """A job that is somewhere between its first steps and half of its way."""
    run_id = stack.start_job()
    stack.wait_for_step(run_id, random.Random(seed).randint(2, STEPS // 2))
    return run_id


def assert_nothing_left(stack: Stack) -> None:
    wait_until(lambda: not stack.children(), 60, "the end of the children")
    wait_until(stack.slot_is_free, 120, "a free slot")


def assert_ends_as(stack: Stack, run_id: str, whole: str) -> None:
    """The same bits, and every node finished once: what was done before the fault was not done again."""
    assert stack.finish(run_id) == whole
    finished = [event["node"] for event in stack.events(run_id, "finished")]
    assert sorted(finished) == ["data-source", "trainer"]


@pytest.mark.parametrize("seed", seeds(8))
def test_cancelled(seed: int, stack: Stack, whole: str) -> None:
    run_id = start_job(stack, seed)
    stack.json("jobs", "cancel", run_id)
    assert stack.state_of(run_id)["type"] == "CANCELLED"
    assert_nothing_left(stack)
    stack.json("jobs", "resume", run_id)
    assert_ends_as(stack, run_id, whole)


@pytest.mark.parametrize("seed", seeds(8))
def test_the_process_of_a_run_is_killed(seed: int, stack: Stack, whole: str) -> None:
    run_id = start_job(stack, seed)
    stack.flow_process(run_id).kill()
    assert stack.wait_for_state(run_id, "CRASHED", seconds=120) < 120
    assert_nothing_left(stack)
    stack.json("jobs", "resume", run_id)
    assert_ends_as(stack, run_id, whole)


@pytest.mark.parametrize("seed", seeds(4))
def test_the_worker_is_killed_with_all_below_it(seed: int, stack: Stack, whole: str) -> None:
    run_id = start_job(stack, seed)
    worker = running(stack.settings, "worker")
    assert worker is not None
    kill_tree(worker.pid)
    assert stack.wait_for_state(run_id, "CRASHED", seconds=120) < 120
    assert_nothing_left(stack)
    assert stack.command("up").returncode == 0
    stack.json("jobs", "resume", run_id)
    assert_ends_as(stack, run_id, whole)


@pytest.mark.parametrize("outage_s", [10, 120])
@pytest.mark.parametrize("seed", seeds(2))
def test_the_server_is_killed_and_comes_back(seed: int, outage_s: int, stack: Stack, whole: str) -> None:
    """The training goes on, or ends, while the server is away; a minute after its return both say the same."""
    run_id = start_job(stack, seed)
    server = running(stack.settings, "server")
    assert server is not None
    kill_tree(server.pid)
    time.sleep(outage_s)
    assert stack.command("up").returncode == 0
    ended = {event["node"] for event in stack.events(run_id, "finished")} == {"data-source", "trainer"}
    if ended:
        stack.wait_for_state(run_id, "COMPLETED", seconds=300)
    assert_ends_as(stack, run_id, whole)
    assert_nothing_left(stack)
