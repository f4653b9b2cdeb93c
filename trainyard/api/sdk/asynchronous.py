"""The operations as methods that are awaited: `await aio.jobs.list()`, in this process or over HTTP.

In this process an operation runs in a thread, so that the event loop is free.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import httpx

from trainyard.api.sdk.remote import TIMEOUT_S, client_options
from trainyard.api.sdk.surface import Call, Surface, call_here
from trainyard.api.sdk.wire import Heard, HttpExchange, Pause, conversation


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
    talk = conversation(name, fields)
    heard: Heard = None
    try:
        step = next(talk)
        while True:
            if isinstance(step, Pause):
                await anyio.sleep(step.seconds)
                heard = None
            else:
                heard = await exchange(client, step)
            step = talk.send(heard)
    except StopIteration as end:
        return end.value


async def exchange(client: httpx.AsyncClient, one: HttpExchange) -> Heard:
    try:
        return await client.request(one.method, one.path, params=one.params, headers=one.headers, content=one.content)
    except httpx.TransportError as error:
        return error


def connect_async(
    url: str = "http://127.0.0.1:8898", token: str = "", *, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> AsyncSurface:
    """Like `connect`, with methods that are awaited."""
    client = httpx.AsyncClient(**client_options(url, token, ca_file, timeout_s))
    return AsyncSurface(partial(call_over_http, client), client)


aio = AsyncSurface(call_in_thread)
"""The operations in this process, awaited."""
