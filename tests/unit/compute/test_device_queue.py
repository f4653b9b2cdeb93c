"""The queue for devices: first come, first served, also when waiters and holders are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainyard.app.context import Context
from trainyard.app.live.waits import OTHER_TENANT, describe_wait, read_devices, read_waits
from trainyard.app.run_records import RunRecord
from trainyard.compute.lease import Patience, Wait, claim_devices, holder, slot_lock
from trainyard.compute.queue import list_waiters, queue_folder
from trainyard.operations.base import Nothing
from trainyard.settings import Settings, load_settings
from trainyard.surfaces.invocation import execute_operation

pytestmark = pytest.mark.integration

CLAIM = """
import sys, time
from trainyard.compute.lease import claim_devices
from trainyard.settings import load_settings
with claim_devices(load_settings(), run=sys.argv[1], among=[int(n) for n in sys.argv[2].split(",")]) as devices:
    print(*devices, flush=True)
    sys.stdin.readline()
"""
SOON_S = 60.0
Claim = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def claim(home: Path) -> Iterator[Claim]:
    """Starts a process that takes a device and keeps it until a line comes."""
    started: list[subprocess.Popen[str]] = []

    def start(run: str, devices: str = "0") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", CLAIM, run, devices]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def got_device(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def runs_waiting(settings: Settings) -> list[str]:
    return [waiter.run for waiter in list_waiters(settings)]


def test_the_first_in_the_queue_is_next_and_a_killed_one_is_forgotten(claim: Claim) -> None:
    settings = load_settings()
    first = claim("first")
    assert got_device(first) == "0"
    waiting = {}
    for number, run in enumerate(("second", "third", "fourth"), start=1):
        waiting[run] = claim(run)
        wait_until(lambda number=number: len(list_waiters(settings)) == number)
    assert runs_waiting(settings) == ["second", "third", "fourth"]
    waits = read_waits(settings)
    assert [(wait.position, wait.holder.run if wait.holder else "") for wait in waits.values()] == [
        (1, "first"), (2, "first"), (3, "first"),
    ]  # fmt: skip
    waiting["second"].kill()
    waiting["second"].wait()
    assert runs_waiting(settings) == ["third", "fourth"]
    first.kill()
    assert got_device(waiting["third"]) == "0"
    assert (holder(slot_lock(settings, 0)) or pytest.fail("nobody has it")).run == "third"
    waiting["third"].kill()
    assert got_device(waiting["fourth"]) == "0"
    wait_until(lambda: not list(queue_folder(settings).iterdir()))


def test_a_waiter_for_one_device_keeps_nobody_from_another(claim: Claim) -> None:
    settings = load_settings()
    assert got_device(claim("holder")) == "0"
    claim("only zero")
    wait_until(lambda: runs_waiting(settings) == ["only zero"])
    assert got_device(claim("any", "0,1")) == "1"


def test_a_wait_is_reported_when_it_changes(claim: Claim) -> None:
    settings, waits = load_settings(), list[Wait]()
    first = claim("first")
    assert got_device(first) == "0"
    second = claim("second")
    wait_until(lambda: runs_waiting(settings) == ["second"])

    def note(wait: Wait) -> None:
        waits.append(wait)
        (first if len(waits) == 1 else second).kill()

    with claim_devices(settings, run="third", among=(0,), patience=Patience(on_wait=note)):
        pass
    assert waits[0].position == 2
    assert [wait.holder.run for wait in waits if wait.holder][:1] == ["first"]
    assert {wait.position for wait in waits[1:]} <= {1, 2}


def test_every_surface_names_the_holder_and_those_who_wait(claim: Claim) -> None:
    settings = load_settings()
    for run, tenant in (("aaa", "default"), ("bbb", "guests")):
        chain = {"name": f"chain {run}", "tenant": tenant, "nodes": [], "order": [], "digest": run}
        RunRecord(settings.runs / run).begin(chain)
    assert got_device(claim("aaa")) == "0"
    claim("bbb")
    wait_until(lambda: runs_waiting(settings) == ["bbb"])
    (device,) = [state for state in read_devices(settings) if state.device == 0]
    assert device.text.startswith("job chain aaa has it since ")
    assert device.text.endswith("; 1 waiting: chain bbb")
    wait = read_waits(settings)["bbb"]
    assert wait.text.startswith("waiting for the device: job chain aaa has it since ")
    assert read_waits(settings, "guests")["bbb"].holder.name == OTHER_TENANT
    context = Context(settings, lambda _: None)
    checks = {check.name: check.detail for check in execute_operation("doctor", Nothing(), context).checks}
    assert checks["device 0"] == device.text
    assert [state.text for state in execute_operation("gpus", Nothing(), context).devices] == [device.text]


def test_a_wait_without_a_holder_says_so() -> None:
    wait = describe_wait(Wait("limit", 0.0, None, 1), load_settings())
    assert wait.text == "waiting for the device's limit of the server"
