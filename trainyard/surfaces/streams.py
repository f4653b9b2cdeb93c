"""Streams of server-sent events: a job, its metrics and its log, and the answers of `adapters ask`.

    job       `job` with the whole job, whenever it has changed
    metrics   `curve` per trainer with what there is, in few points; then `points` with the steps since
    logs      `lines` of one source each: `run`, or a trainer
    all three `end` with the state once the job has ended, and comments every 15 seconds

A client that was cut off sends the last id as `Last-Event-ID` and gets the events after it. A client that reads slowly
is not waited for and nothing is stored for it: it continues at its place in the file.

    asked     the question has been accepted; a model server may be started first
    answer    `side` (base or adapter) and all of its text so far
    end       the result of `adapters ask`, or `error`: a problem document

The work of `adapters ask` ends with its stream: when the client leaves, the model server stops too.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2. A text may have any characters:
each of its lines is a `data:` line. An id or a name with a line break is refused, because a client would read the
rest as another field.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import orjson

from trainyard.app.adapters.trained import find_served
from trainyard.app.context import Context
from trainyard.app.jobs import jobs
from trainyard.app.jobs.jobs import build_job
from trainyard.app.live.jobs import open_index
from trainyard.app.live.tails import FileTail, LogPlace, find_hub
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job
from trainyard.app.secrets import list_secrets, read_text_before, redact_lines
from trainyard.app.training_logs import TrainingLogs
from trainyard.cancellation import CallerLeft
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import LineSpan, parse
from trainyard.errors import InvalidInput, NotFound, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.adapters import AskInput
from trainyard.operations.jobs import JobInput, LogsInput, MetricsInput
from trainyard.stores.live.job_index import ENDED, Row
from trainyard.stores.metrics import MEASURED, number
from trainyard.surfaces.invocation import execute_operation

LINE_END = re.compile(r"\r\n|\n|\r")
NO_ID = re.compile("[\r\n\0]")
"""A client ignores an id with a NUL."""


@dataclass(frozen=True)
class ServerEvent:
    """An event of a stream, or a comment alone."""

    data: str = ""
    event: str = ""
    """Its name; "" is `message`."""
    id: str = ""
    """What a client sends as `Last-Event-ID` to continue after it; "" leaves the last one."""
    comment: str = ""

    def encode(self) -> bytes:
        """Return the event as a client reads it. Raises `ValueError` for an id or a name with a line break."""
        if NO_ID.search(self.id) or NO_ID.search(self.event):
            raise ValueError(f"An event cannot have the id {self.id!r} and the name {self.event!r}.")
        lines = [f": {line}" for line in LINE_END.split(self.comment)] if self.comment else []
        lines += [f"event: {self.event}"] if self.event else []
        lines += [f"id: {self.id}"] if self.id else []
        lines += [f"data: {line}" for line in LINE_END.split(self.data)] if self.data or not self.comment else []
        return "".join(f"{line}\n" for line in [*lines, ""]).encode("utf-8", "replace")


HEARTBEAT = ServerEvent(comment="heartbeat")


HEARTBEAT_S = 15.0
OPERATION = "adapters ask"


async def follow_answers(request: AskInput, context: Context, _last: str | None) -> AsyncIterator[ServerEvent]:
    """Yield both answers, one after the other. Raises what `find_served` raises, before the first event."""
    await asyncio.to_thread(find_served, request.adapter, context)
    loop, events = asyncio.get_running_loop(), asyncio.Queue[JsonObject | None]()

    def report(event: JsonObject) -> None:
        if event["event"] == "answer":
            loop.call_soon_threadsafe(events.put_nowait, event)

    def work() -> Any:
        try:
            return execute_operation(OPERATION, request, replace(context, on_progress=report))
        except CallerLeft:
            return None
        finally:
            loop.call_soon_threadsafe(events.put_nowait, None)

    working = asyncio.create_task(asyncio.to_thread(work))
    working.add_done_callback(lambda task: task.cancelled() or task.exception())  # of a caller who has gone
    try:
        yield ServerEvent("{}", "asked")
        while (event := await next_event(events)) is not None:
            if event:
                yield ServerEvent(orjson.dumps({"side": event["node"], "text": event["text"]}).decode(), "answer")
            else:
                yield HEARTBEAT
        try:
            text = (await working).model_dump_json()
        except TrainyardError as error:
            text = orjson.dumps({"error": error.as_dict()}, default=str).decode()
        yield ServerEvent(text, "end")
    finally:
        context.departure.note()


async def next_event(events: asyncio.Queue[JsonObject | None]) -> JsonObject | None:
    """Return the next event, None after the last one; {} when none came for long."""
    try:
        return await asyncio.wait_for(events.get(), HEARTBEAT_S)
    except TimeoutError:
        return {}


STATE_EVERY_S = 0.5
"""How often the job itself is looked at; its files wake a stream at once."""
FIRST_POINTS = 1000
"""Of a curve whose reader names no number."""
MOST_BEHIND_BYTES = 4 << 20
"""A client that is further behind gets the curve again, instead of every step."""
PLACES = re.compile(r"(?:[A-Za-z0-9_.-]+=\d{1,16}\.\d{1,20}(?:,|$))*")


async def follow_job(request: JobInput, context: Context, last_event_id: str | None) -> AsyncIterator[ServerEvent]:
    """Yield the job, whenever it has changed."""
    sent = last_event_id or ""
    async with aclosing(turns(request.job, context, lambda _work: None)) as every:
        async for turn in every:
            text = build_job(turn.row).model_dump_json()
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if digest != sent:
                sent = digest
                yield ServerEvent(text, "job", digest)
            if turn.last:
                yield turn.last(sent)


async def follow_metrics(
    request: MetricsInput, context: Context, last_event_id: str | None
) -> AsyncIterator[ServerEvent]:
    """Yield the curve of each trainer in few points, then every step as it is written."""
    positions = read_places(last_event_id)
    async with aclosing(turns(request.job, context, lambda work: work.folder / EVENTS_FILE)) as every:
        async for turn in every:
            for node, tail in turn.tails.items():
                if request.node not in (None, node):
                    continue
                if node not in positions or tail.end - positions[node].offset > MOST_BEHIND_BYTES:
                    positions[node] = LogPlace(tail.end, tail.inode)
                    yield ServerEvent(await first_curve(node, request, context), "curve", write_places(positions))
                async for lines in new_lines(tail, node, positions):
                    if points := [point for line in lines if (point := parse_point(line.data)) is not None]:
                        text = orjson.dumps({"node": node, "points": points}).decode()
                        yield ServerEvent(text, "points", write_places(positions))
            if turn.last:
                yield turn.last(write_places(positions))


async def follow_logs(request: LogsInput, context: Context, last_event_id: str | None) -> AsyncIterator[ServerEvent]:
    """Yield the trainers' output, as it comes, from their first line or `offset` on. Secrets in it are replaced."""
    positions, secrets = read_places(last_event_id), list_secrets(context.settings)
    async with aclosing(turns(request.job, context, lambda work: work.log)) as every:
        async for turn in every:
            for node, tail in turn.tails.items():
                if request.source not in (None, node):
                    continue
                positions.setdefault(node, LogPlace(request.offset or 0))
                async for lines in new_lines(tail, node, positions):
                    texts = await asyncio.to_thread(readable_lines, tail.path, lines, secrets)
                    text = orjson.dumps({"source": node, "lines": texts}).decode()
                    yield ServerEvent(text, "lines", write_places(positions))
            if turn.last:
                yield turn.last(write_places(positions))


def readable_lines(path: Path, lines: Sequence[LineSpan], secrets: Collection[str]) -> list[str]:
    """Return the lines without secrets, also of a private key that began before them."""
    texts = [line.data.decode("utf-8", "replace") for line in lines]
    return redact_lines(texts, secrets, read_text_before(path, lines[0].start))


async def new_lines(tail: FileTail, node: str, positions: dict[str, LogPlace]) -> AsyncIterator[list[LineSpan]]:
    """Yield the lines after a client's place, block by block; the place moves with them."""
    while True:
        lines, positions[node] = tail.after(positions[node])
        if not lines:
            return
        yield lines


async def first_curve(node: str, request: MetricsInput, context: Context) -> str:
    """Return the curve of a trainer so far, as `jobs metrics` gives it."""
    curve_request = request.model_copy(
        update={"node": node, "max_points": request.max_points or FIRST_POINTS, "plot": False}
    )
    try:
        page = await asyncio.to_thread(jobs.show_metrics, curve_request, context)
    except NotFound:  # before the first step
        return orjson.dumps({"node": node, "points": []}).decode()
    return page.trainings[0].model_dump_json()


def parse_point(line: bytes) -> dict[str, object] | None:
    """Return the step of an event; a `begin` as the step from which the curve continues."""
    event = parse(line)
    if event is None:
        return None
    if event["event"] == "begin":
        restarted = event.get("restarted_from")
        step = restarted.get("step") if isinstance(restarted, dict) else None
        return {"restarted_from": step if isinstance(step, int) else None}
    if event["event"] != "progress" or not isinstance(event.get("step"), int):
        return None
    values = {name: value for name in MEASURED if (value := number(event.get(name))) is not None}
    return {"step": event["step"], "time": number(event.get("time")) or 0.0, **values}


# Shared by the streams


@dataclass
class StreamTurn:
    """State of a stream at one turn: its job, the tails of its files, and what to say after them."""

    row: Row
    tails: dict[str, FileTail] = field(default_factory=dict)
    last: Callable[[str], ServerEvent] | None = None
    """Makes a heartbeat, or the end, from the id of the last event."""


async def turns(
    word: str, context: Context, file_of: Callable[[TrainingLogs], Path | None]
) -> AsyncGenerator[StreamTurn, None]:
    """Yield a turn when a file of the job has grown, the job has changed or ended, or a heartbeat is due; the first at
    once.

    Raises what `find_job` raises, before the first turn.
    """
    row = (await asyncio.to_thread(find_job, word, context)).row
    more, due = asyncio.Event(), 0.0
    turn = StreamTurn(row)
    with ExitStack() as following:
        job = following.enter_context(job_hub().follow(row, context, more))
        while True:
            turn.row = job.row
            has_ended = job.row["state"] in ENDED
            for work in find_trainings(job.row):
                path = file_of(work)
                if path is not None and (work.node not in turn.tails or turn.tails[work.node].path != path):
                    turn.tails[work.node] = following.enter_context(find_hub().follow(path, more))
            for tail in turn.tails.values() if has_ended else ():
                tail.look()
            is_due = time.monotonic() >= due
            due = time.monotonic() + HEARTBEAT_S if is_due else due
            turn.last = partial(build_end, job.row) if has_ended else (lambda _id: HEARTBEAT) if is_due else None
            yield turn
            if has_ended:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(more.wait(), max(0.01, due - time.monotonic()))
            more.clear()


@dataclass
class WatchedJob:
    """A job that streams follow."""

    row: Row
    context: Context
    listeners: set[asyncio.Event] = field(default_factory=set)


class JobHub:
    """The jobs that the streams of one event loop follow: one look at the index for all of them."""

    def __init__(self) -> None:
        self.jobs: dict[str, WatchedJob] = {}
        self.task: asyncio.Task[None] | None = None
        self.changes = -1

    @contextmanager
    def follow(self, row: Row, context: Context, listener: asyncio.Event) -> Iterator[WatchedJob]:
        """A job whose row is kept up to date; `listener` is set when it has changed."""
        job = self.jobs.setdefault(row["run_id"], WatchedJob(row, context))
        job.listeners.add(listener)
        self.changes = -1  # the row may be older than the others
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self.look_for_ever())
        try:
            yield job
        finally:
            job.listeners.discard(listener)
            if not job.listeners:
                self.jobs.pop(row["run_id"], None)
            if not self.jobs and self.task is not None:
                self.task.cancel()
                self.task = None

    async def look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(STATE_EVERY_S)
            for run_id, row in (await asyncio.to_thread(self.read)).items():
                job = self.jobs.get(run_id)
                if job is not None and job.row != row:
                    job.row = row
                    for listener in job.listeners:
                        listener.set()

    def read(self) -> dict[str, Row]:
        """Return the rows that may have changed, from the index; from Prefect without an index."""
        followed = dict(self.jobs)
        contexts = [job.context for job in followed.values()]
        if not contexts:
            return {}
        index = open_index(contexts[0].settings)
        if not index.is_kept(time.time()):
            return {run_id: find_job(run_id, job.context).row for run_id, job in followed.items()}
        changes = index.changes()
        if changes == self.changes:
            return {}
        self.changes = changes
        return index.read_rows(followed)


JOB_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, JobHub] = WeakKeyDictionary()


def job_hub() -> JobHub:
    """Return the hub of the running event loop."""
    return JOB_HUBS.setdefault(asyncio.get_running_loop(), JobHub())


def build_end(row: Row, event_id: str) -> ServerEvent:
    return ServerEvent(orjson.dumps({"state": row["state"], "message": row["message"]}).decode(), "end", event_id)


def write_places(positions: dict[str, LogPlace]) -> str:
    """Return the places of all sources as the id of an event: `trainer=4096.1234,trainer-2=0.1240`."""
    return ",".join(f"{node}={position.offset}.{position.inode}" for node, position in sorted(positions.items()))


def read_places(event_id: str | None) -> dict[str, LogPlace]:
    """Return the places that an id names. Raises `InvalidInput` (`E-PARAMETER`)."""
    if not event_id:
        return {}
    if not PLACES.fullmatch(event_id):
        raise InvalidInput(
            f"{event_id[:100]!r} is not the id of an event of this stream.",
            do="Send the id of the last event as Last-Event-ID, or none to begin again.",
            code="E-PARAMETER",
        )
    pairs = (part.partition("=") for part in event_id.split(",") if part)
    return {node: LogPlace(*map(int, position.split("."))) for node, _, position in pairs}
