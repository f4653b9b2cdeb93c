"""The operations as methods that are awaited: `await aio.jobs.list()`, in this process or over HTTP.

In this process an operation runs in a thread, so that the event loop is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import httpx
from tenacity import AsyncRetrying

from trainyard.callbacks import ignore
from trainyard.surfaces.sdk.events import LineSplitter, NextLine, is_event_stream
from trainyard.surfaces.sdk.live_output import open_live
from trainyard.surfaces.sdk.remote import TIMEOUT_S, client_options, stream_timeout
from trainyard.surfaces.sdk.surface import Call, Surface, run_locally
from trainyard.surfaces.sdk.wire import Heard, HttpExchange, Pause, Step, conversation, request_words, retry_policy


class AsyncSurface(Surface):
    """The operations; a call returns an awaitable. Close it, or use it in `async with`."""

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


async def call_in_thread(name: str, fields: Mapping[str, object]) -> object:
    return await anyio.to_thread.run_sync(partial(run_locally, name, fields), abandon_on_cancel=True)


async def call_over_http(client: httpx.AsyncClient, name: str, fields: Mapping[str, Any]) -> Any:
    live = open_live(name, fields)
    talk = conversation(name, fields, live.note_job if live else ignore)
    async with AsyncExitStack() as stack:
        steps = AwaitedSteps(client, stack)
        try:
            step = next(talk)
            while True:
                step = talk.send(await steps.run_step(step))
        except StopIteration as end:
            if live:
                live.end(end.value)
            return end.value


class AwaitedSteps:
    """The steps of a conversation by a client that awaits; a stream that they open is closed with `stack`."""

    def __init__(self, client: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self.client, self.stack = client, stack
        self.lines: AsyncIterator[str] | None = None

    async def run_step(self, step: Step) -> Heard:
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        if isinstance(step, NextLine):
            try:
                return await anext(self.lines, None) if self.lines is not None else None
            except httpx.RequestError:  # the stream was cut off
                return None
        send = self.open_stream if step.is_stream else self.send
        return await AsyncRetrying(**retry_policy(step))(send, step)

    async def send(self, exchange: HttpExchange) -> httpx.Response:
        return await self.client.request(**request_words(exchange))

    async def open_stream(self, exchange: HttpExchange) -> httpx.Response:
        await self.stack.aclose()  # the stream before it was cut off
        self.lines = None
        stream = self.client.stream(**request_words(exchange), timeout=stream_timeout())
        response = await self.stack.enter_async_context(stream)
        if not is_event_stream(response):
            await response.aread()
            return response
        splitter = LineSplitter()
        self.lines = (line async for text in response.aiter_text() for line in splitter.feed(text))
        return response


def connect_async(
    url: str = "http://127.0.0.1:8898", token: str = "", *, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> AsyncSurface:
    """Like `connect`, with methods that are awaited."""
    client = httpx.AsyncClient(**client_options(url, token, ca_file, timeout_s))
    return AsyncSurface(partial(call_over_http, client), client)


aio = AsyncSurface(call_in_thread)
"""The operations in this process, awaited."""
