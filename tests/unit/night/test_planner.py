"""The planner: its prediction holds against a server of known speed, and it stops in time."""

from __future__ import annotations

import asyncio

import pytest

from trainyard.night.planner import LEARNT_FROM, Planner


@pytest.mark.parametrize(("slots", "latency"), [(1, 0.01), (4, 0.02), (8, 0.05)])
async def test_the_prediction_holds(slots: int, latency: float) -> None:
    loop = asyncio.get_running_loop()
    budget = 40 * latency * max(1, LEARNT_FROM // slots) / 10
    planner = Planner(loop.time(), loop.time() + budget, slots, latency)
    waiting = list(range(100_000))
    predicted = planner.predict(len(waiting))

    async def one_after_another() -> None:
        while waiting and planner.admits(loop.time()):
            waiting.pop()
            began = loop.time()
            await asyncio.sleep(latency)
            planner.note(loop.time(), loop.time() - began, len(waiting))

    await asyncio.gather(*(one_after_another() for _ in range(slots)))
    assert loop.time() <= planner.deadline + 3 * latency + 0.1
    assert planner.learnt_predicted is not None
    assert abs(planner.learnt_predicted - planner.done) <= max(0.25 * planner.done, slots + 1)
    assert predicted >= planner.done * 0.75


def test_nothing_is_promised_without_time() -> None:
    planner = Planner(100.0, 100.0, 4, 1.0)
    assert planner.predict(10) == 0
    assert not planner.admits(100.0)
    assert Planner(0.0, 1e6, 4, 1.0).predict(10) == 10
