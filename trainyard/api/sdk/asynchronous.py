"""The operations as methods that are awaited: `await aio.jobs.list()`, in this process or over HTTP.

In this process an operation runs in a thread, so that the event loop is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import httpx

from trainyard.api.sdk.answers import ServiceAnswer, answer_of
from trainyard.api.sdk.events import LineSplitter, NextLine, is_event_stream
from trainyard.api.sdk.live_output import open_live
from trainyard.api.sdk.remote import TIMEOUT_S, client_options, stream_timeout
from trainyard.api.sdk.surface import Call, Surface, call_here
from trainyard.api.sdk.wire import Heard, HttpExchange, Pause, Step, conversation
from trainyard.callbacks import ignore


class AsyncSurface(Surface):
    """The operations; a call returns what is awaited. Close it, or use it in `async with`."""

    def __init__(self, call: Call, client: httpx.AsyncClient | None = None) -> None:
        super().__init__(call)
        self._client = client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()


async def call_in_thread(name: str, fields: dict[str, Any]) -> Any:
    return await anyio.to_thread.run_sync(partial(call_here, name, fields), abandon_on_cancel=True)


async def call_over_http(client: httpx.AsyncClient, name: str, fields: dict[str, Any]) -> Any:
    live = open_live(name, fields)
    talk = conversation(name, fields, live.note_job if live else ignore)
    async with AsyncExitStack() as stack:
        steps = AwaitedSteps(client, stack)
        try:
            step = next(talk)
            while True:
                step = talk.send(await steps.carry_out(step))
        except StopIteration as end:
            if live:
                live.end(end.value)
            return end.value


class AwaitedSteps:
    """Carries out the steps of a conversation; a stream that it opens is closed with `stack`."""

    def __init__(self, client: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self.client, self.stack = client, stack
        self.lines: AsyncIterator[str] | None = None

    async def carry_out(self, step: Step) -> Heard:
        try:
            if isinstance(step, Pause):
                await anyio.sleep(step.seconds)
                return None
            if isinstance(step, NextLine):
                return await anext(self.lines, None) if self.lines is not None else None
            if step.is_stream:
                return await self.open_stream(step)
            return answer_of(await self.client.request(**request_words(step)))
        except httpx.TransportError as error:
            return error

    async def open_stream(self, step: HttpExchange) -> ServiceAnswer:
        await self.stack.aclose()  # the stream before it was cut off
        self.lines = None
        request = self.client.build_request(**request_words(step), timeout=stream_timeout())
        response = await self.client.send(request, stream=True)
        self.stack.push_async_callback(response.aclose)
        head = answer_of(response, content=b"")
        if not is_event_stream(head):
            return answer_of(response, await response.aread())
        splitter = LineSplitter()
        self.lines = (line async for text in response.aiter_text() for line in splitter.feed(text))
        return head


def request_words(one: HttpExchange) -> dict[str, Any]:
    """A request as httpx takes it."""
    words = {"method": one.method, "url": one.path, "params": one.params, "headers": one.headers}
    return {**words, "content": one.content}


def connect_async(
    url: str = "http://127.0.0.1:8898", token: str = "", *, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> AsyncSurface:
    """Like `connect`, with methods that are awaited."""
    client = httpx.AsyncClient(**client_options(url, token, ca_file, timeout_s))
    return AsyncSurface(partial(call_over_http, client), client)


aio = AsyncSurface(call_in_thread)
"""The operations in this process, awaited."""
