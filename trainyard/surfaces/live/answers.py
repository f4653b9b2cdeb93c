"""The answers of `adapters ask` as server-sent events, as they are written.

    asked     the question has been accepted; a model server may be started first
    answer    `side` (base or adapter) and all of its text so far
    end       what `adapters ask` returns, or `error`: a problem document

The work ends with the stream: a client that goes away takes its question with it, so that the model server stops too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson

from trainyard.app.adapters.trained import find_served
from trainyard.app.context import Context
from trainyard.cancellation import CallerLeft
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.adapters import AskInput
from trainyard.surfaces.invocation import execute_operation
from trainyard.surfaces.live.sse import HEARTBEAT, ServerEvent

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
