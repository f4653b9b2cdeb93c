from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

import pytest
from prefect.client.orchestration import get_client

from trainyard.api.runs import gpu_slot, limit_name, wanted_by
from trainyard.compute.supervise import Wanted
from trainyard.settings import settings

pytestmark = pytest.mark.usefixtures("prefect")


def test_two_trainings_never_overlap_on_a_device() -> None:
    spans: list[tuple[float, float]] = []

    def train() -> None:
        with gpu_slot(settings(), run="r"):
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
    async def active() -> tuple[int, int]:
        async with get_client() as client:
            limit = await client.read_global_concurrency_limit_by_name(limit_name())
            return limit.limit, limit.active_slots

    with gpu_slot(settings()):
        assert asyncio.run(active()) == (1, 1)
    assert asyncio.run(active()) == (1, 0)


def test_another_device_is_another_slot() -> None:
    with gpu_slot(settings(), device=0), gpu_slot(settings(), device=1):
        assert limit_name(0) != limit_name(1)


def test_a_run_that_the_server_does_not_know_goes_on() -> None:
    assert wanted_by("00000000-0000-0000-0000-000000000000")() is Wanted.RUN
