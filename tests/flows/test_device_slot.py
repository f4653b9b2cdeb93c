from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest
from prefect.client.orchestration import get_client

from trainyard.compute.lease import holder, slot_lock
from trainyard.compute.supervise import DesiredState
from trainyard.prefect_api.server import bootstrap, limit_name
from trainyard.prefect_api.slots import device_slots
from trainyard.prefect_api.states import make_state_reader
from trainyard.settings import settings

pytestmark = pytest.mark.usefixtures("prefect")


def active(device: int) -> int:
    """Slots that are taken of the device's limit, which has one."""
    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(limit_name(device))
    assert limit.limit == 1
    return limit.active_slots


def test_two_trainings_never_overlap_on_a_device() -> None:
    spans: list[tuple[float, float]] = []

    def train() -> None:
        with device_slots(settings(), run="r", among=(0,)):
            started = time.monotonic()
            time.sleep(0.3)
            spans.append((started, time.monotonic()))

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    ordered = sorted(spans)
    assert len(ordered) == 3
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(ordered))


def test_the_slot_is_a_limit_that_prefect_shows_and_is_free_afterwards() -> None:
    with device_slots(settings(), among=(0,)):
        assert active(0) == 1
    assert active(0) == 0


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets this machine's CPU be taken for several devices."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda count: monkeypatch.setenv("TRAINYARD_SIMULATED_DEVICES", str(count))


def test_trainings_on_different_devices_overlap_and_a_third_waits(devices: Callable[[int], None]) -> None:
    devices(2)
    third: list[tuple[tuple[int, ...], float]] = []

    def wait() -> None:
        with device_slots(settings(), run="third") as numbers:
            third.append((numbers, time.monotonic()))

    waiting = threading.Thread(target=wait)
    with device_slots(settings(), run="first") as first:
        with device_slots(settings(), run="second") as second:
            assert (first, second) == ((0,), (1,))
            waiting.start()
            time.sleep(1.5)
            assert not third
            assert [active(number) for number in first + second] == [1, 1]
        released = time.monotonic()
        waiting.join(timeout=30)
        ((numbers, began),) = third
        assert (numbers, began - released < 10) == ((1,), True)
    assert [active(number) for number in (0, 1)] == [0, 0]


def test_a_training_on_two_devices_waits_for_both(devices: Callable[[int], None]) -> None:
    devices(2)
    both: list[tuple[int, ...]] = []

    def wait() -> None:
        with device_slots(settings(), 2, run="wide") as numbers:
            both.append(numbers)

    waiting = threading.Thread(target=wait)
    with device_slots(settings(), run="narrow", among=(1,)):
        waiting.start()
        time.sleep(1.5)
        assert not both
        assert holder(slot_lock(settings(), 0)) is not None  # it keeps what it has, so that it gets its turn
    waiting.join(timeout=30)
    assert both == [(0, 1)]


@pytest.mark.slow
def test_wide_and_narrow_trainings_neither_overlap_nor_wait_in_a_ring(devices: Callable[[int], None]) -> None:
    devices(4)
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def train(count: int) -> None:
        for _ in range(3):
            with device_slots(settings(), count, run=f"wants-{count}") as numbers:
                assert (len(numbers), list(numbers)) == (count, sorted(set(numbers)))
                started = time.monotonic()
                time.sleep(0.1)
                for number in numbers:
                    spans[number].append((started, time.monotonic()))

    threads = [threading.Thread(target=train, args=(count,)) for count in (3, 3, 2, 1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sum(len(of_device) for of_device in spans.values()) == 3 * (3 + 3 + 2 + 1 + 4)
    for of_device in spans.values():
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(sorted(of_device)))


def test_every_device_has_a_limit_after_the_bootstrap(devices: Callable[[int], None]) -> None:
    devices(3)
    bootstrap(settings())
    assert [active(number) for number in range(3)] == [0, 0, 0]


def test_a_run_that_the_server_does_not_know_goes_on() -> None:
    assert make_state_reader("00000000-0000-0000-0000-000000000000")() is DesiredState.RUN
