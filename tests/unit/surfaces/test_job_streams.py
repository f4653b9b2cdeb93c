"""Streams of a job against its files and an index: nothing is lost or doubled, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Context
from trainyard.app.live.jobs import open_index
from trainyard.app.live.tails import FileTail, LogPlace, find_hub
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.jobs import JobInput, LogsInput, MetricsInput
from trainyard.settings import load_settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobIndex
from trainyard.surfaces import streams
from trainyard.surfaces.streams import HEARTBEAT, ServerEvent

RUN = "0190d3c2-1f2e-4a3b-8c4d-5e6f70819203"
JOB = "job-5e6f70819203"
WAIT_S = 60.0


class JobHome:
    """A home with one job, whose files and row a test changes."""

    def __init__(self, folder: Path) -> None:
        self.context = Context(load_settings(home=folder / "home"), say=lambda _text: None)
        self.work = folder / "work"
        self.work.mkdir()
        self.index: JobIndex = open_index(self.context.settings)
        self.state(JobState.RUNNING)

    def state(self, state: JobState, **more: Any) -> None:
        training = {"node": "trainer", "folder": str(self.work), "since": 0.0, "step": 1}
        row = {
            "run_id": RUN, "id": JOB, "name": "guide", "tenant": "default", "state": state, "detail": "", "message": "",
            "created": 1.0, "started": 1.0, "seconds": 1.0, "attempts": 1, "pid": None, "url": "", "parameters": {},
            "tags": ["job"], "stage": "sft", "method": "lora", "backend": "native", "base_model": "",
            "trainings": [training], **more,
        }  # fmt: skip
        self.index.note_success(time.time())
        self.index.note_try(time.time())
        self.index.put([row], time.time())

    def write(self, name: str, text: str) -> None:
        with (self.work / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def step(self, *steps: int) -> None:
        lines = [json.dumps({"event": "progress", "time": 100.0 + n, "step": n, "loss": float(n)}) for n in steps]
        self.write("events.jsonl", "".join(f"{line}\n" for line in lines))

    def metrics(self, last: str | None = None, **more: Any) -> AsyncIterator[ServerEvent]:
        return streams.follow_metrics(MetricsInput(job=JOB, **more), self.context, last)

    def logs(self, last: str | None = None, **more: Any) -> AsyncIterator[ServerEvent]:
        return streams.follow_logs(LogsInput(job=JOB, **more), self.context, last)


@pytest.fixture
def job_home(tmp_path: Path) -> JobHome:
    return JobHome(tmp_path)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(WAIT_S):
            await test()
            await asyncio.sleep(0)
        assert find_hub().tails == {}, "a client that has gone leaves nothing behind"
        assert streams.job_hub().jobs == {}
        assert find_hub().task is None
        assert streams.job_hub().task is None

    asyncio.run(whole())


async def find_named(events: AsyncIterator[ServerEvent], name: str) -> ServerEvent:
    """The next event of a name; comments are passed over."""
    async for event in events:
        if event.event == name:
            return event
        assert event.comment, event
    raise AssertionError(f"no {name}")


async def texts_until_end(events: AsyncIterator[ServerEvent]) -> list[ServerEvent]:
    return [event async for event in events if not event.comment]


def list_steps(events: list[ServerEvent]) -> list[int]:
    curve_events = [event for event in events if event.event in ("points", "curve")]
    return [point["step"] for event in curve_events for point in json.loads(event.data)["points"]]


def list_lines(events: list[ServerEvent]) -> list[str]:
    return [line for event in events if event.event == "lines" for line in json.loads(event.data)["lines"]]


def test_steps_arrive_soon_after_they_are_written(job_home: JobHome) -> None:
    async def test() -> None:
        job_home.step(*range(1, 6))
        events = job_home.metrics()
        curve = json.loads((await find_named(events, "curve")).data)
        assert [point["step"] for point in curve["points"]] == [1, 2, 3, 4, 5]
        waits = []
        for step in range(6, 26):
            waiting = asyncio.create_task(find_named(events, "points"))
            await asyncio.sleep(0.03)
            written = time.monotonic()
            job_home.step(step)
            event = await waiting
            waits.append(time.monotonic() - written)
            assert list_steps([event]) == [step]
        assert sorted(waits)[len(waits) // 2] < 0.25
        job_home.state(JobState.COMPLETED)
        end = (await texts_until_end(events))[-1]
        assert (end.event, json.loads(end.data)["state"]) == ("end", "completed")

    run(test)


def test_a_client_continues_where_it_was_cut_off(job_home: JobHome) -> None:
    async def test() -> None:
        job_home.step(1, 2, 3)
        events = job_home.metrics()
        last = (await find_named(events, "curve")).id
        await events.aclose()
        job_home.step(4, 5)
        job_home.state(JobState.COMPLETED)
        rest = await texts_until_end(job_home.metrics(last))
        assert list_steps(rest) == [4, 5]
        assert [event.event for event in rest] == ["points", "end"]
        assert list_steps(await texts_until_end(job_home.metrics(rest[-1].id))) == []

    run(test)


def test_every_line_arrives_once_with_its_characters(job_home: JobHome) -> None:
    colored = "\x1b[31mloss\x1b[0m \r 50%|#####| <b>&amp;</b> \U0001f680"

    async def test() -> None:
        job_home.write("child.log", f"first\n{colored}\nhalf")
        events = job_home.logs()
        first = await find_named(events, "lines")
        assert json.loads(first.data) == {"source": "trainer", "lines": ["first", colored]}
        job_home.write("child.log", " a line\nthird\n")
        second = await find_named(events, "lines")
        assert json.loads(second.data)["lines"] == ["half a line", "third"]
        await events.aclose()
        job_home.write("child.log", "fourth\n")
        job_home.state(JobState.FAILED, message="no")
        again = await texts_until_end(job_home.logs(first.id))
        assert list_lines(again) == ["half a line", "third", "fourth"]
        assert json.loads(again[-1].data) == {"state": "failed", "message": "no"}

    run(test)


def test_a_client_that_is_ahead_of_the_last_look_does_not_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_text("one\n")
    tail = FileTail(path)
    tail.look()
    with path.open("a") as file:
        file.write("two\nthree\n")
    lines, log_place = tail.after(LogPlace(0, tail.inode))  # reads the file itself, further than the last look
    assert [line.data for line in lines] == [b"one", b"two", b"three"]
    assert tail.after(log_place) == ([], log_place)
    os.truncate(path, 4)
    tail.look()
    lines, _ = tail.after(log_place)
    assert [line.data for line in lines] == [b"one"]


def test_a_log_that_is_cut_or_replaced_begins_again(job_home: JobHome) -> None:
    async def test() -> None:
        job_home.write("child.log", "one\ntwo\nthree\n")
        events = job_home.logs()
        await find_named(events, "lines")
        os.truncate(job_home.work / "child.log", 0)
        job_home.write("child.log", "new\n")
        assert json.loads((await find_named(events, "lines")).data)["lines"] == ["new"]
        (job_home.work / "child.log").rename(job_home.work / "child.log.1")
        job_home.write("child.log", "rotated, and longer than before\n")
        assert json.loads((await find_named(events, "lines")).data)["lines"] == ["rotated, and longer than before"]
        await events.aclose()

    run(test)


@pytest.mark.integration
def test_a_slow_reader_gets_everything_from_the_file(job_home: JobHome) -> None:
    lines = [f"line {number} {'x' * 200}" for number in range(20_000)]

    async def test() -> None:
        job_home.write("child.log", "begin\n")
        slow, quick = job_home.logs(), job_home.logs()
        await find_named(slow, "lines")
        await find_named(quick, "lines")
        for start in range(0, len(lines), 2_000):
            job_home.write("child.log", "".join(f"{line}\n" for line in lines[start : start + 2_000]))
            await asyncio.sleep(0.12)
        (tail,) = find_hub().tails.values()
        assert len(tail.lines) <= 2_000, "what is kept for all is bounded"
        job_home.state(JobState.COMPLETED)
        for events in (slow, quick):
            received = list_lines(await texts_until_end(events))
            assert received == lines

    run(test)


def test_many_clients_share_one_look_at_a_file(job_home: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        job_home.write("child.log", "first\n")
        clients = [job_home.logs() for _ in range(50)]
        for events in clients:
            await find_named(events, "lines")
        assert len(find_hub().tails) == len(streams.job_hub().jobs) == 1
        waiting = [asyncio.create_task(find_named(events, "lines")) for events in clients]
        await asyncio.sleep(0.05)
        job_home.write("child.log", "second\n")
        assert {event.data for event in await asyncio.gather(*waiting)} == {'{"source":"trainer","lines":["second"]}'}
        for events in clients:
            await events.aclose()

    run(test)


def test_the_job_is_sent_when_it_changes(job_home: JobHome) -> None:
    async def test() -> None:
        events = streams.follow_job(JobInput(job=JOB), job_home.context, None)
        first = await find_named(events, "job")
        assert json.loads(first.data)["state"] == "running"
        job_home.state(JobState.PAUSED, detail="pausing")
        assert json.loads((await find_named(events, "job")).data)["detail"] == "pausing"
        job_home.state(JobState.CANCELED)
        assert [event.event for event in await texts_until_end(events)] == ["job", "end"]
        again = streams.follow_job(JobInput(job=JOB), job_home.context, first.id)
        assert [event.event for event in await texts_until_end(again)] == ["job", "end"]

    run(test)


def test_a_quiet_stream_has_heartbeats(job_home: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.2)

    async def test() -> None:
        events = job_home.logs()
        beats = [await anext(events) for _ in range(4)]
        assert beats == [HEARTBEAT] * 4
        await events.aclose()

    run(test)


def test_a_restart_is_told_in_the_points(job_home: JobHome) -> None:
    async def test() -> None:
        job_home.step(1, 2)
        events = job_home.metrics()
        await find_named(events, "curve")
        job_home.write("events.jsonl", '{"event": "begin", "restarted_from": {"step": 1}}\n')
        job_home.step(2)
        event = await find_named(events, "points")
        assert json.loads(event.data)["points"] == [{"restarted_from": 1}, {"step": 2, "time": 102.0, "loss": 2.0}]
        await events.aclose()

    run(test)


@pytest.mark.parametrize("wrong", ["x", "trainer=1", "trainer=a.b", "trainer=-1.2", "a=1.2;b=3.4", "=1.2"])
def test_an_id_of_no_event_is_refused(job_home: JobHome, wrong: str) -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput, match=r"E-PARAMETER: .* is not the id of an event"):
            await anext(job_home.logs(wrong))

    run(test)


def test_a_job_that_is_not_there_is_refused_before_the_first_event(
    job_home: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_missing(*_arguments: object) -> Any:
        raise NotFound("There is no job.", code="E-JOB-NOT-FOUND")

    monkeypatch.setattr("trainyard.app.names.connect_runs", raise_missing)

    async def test() -> None:
        with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
            await anext(streams.follow_logs(LogsInput(job="job-000000000000"), job_home.context, None))

    run(test)


def test_a_file_that_comes_later_is_read_from_its_start(tmp_path: Path) -> None:
    tail = FileTail(tmp_path / "log")
    tail.look()
    assert tail.after(LogPlace()) == ([], LogPlace())
    (tmp_path / "log").write_text("a\nb\nhalf")
    tail.look()
    lines, at = tail.after(LogPlace())
    assert [line.data for line in lines] == [b"a", b"b"]
    assert at.offset == 4
