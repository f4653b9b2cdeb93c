"""The operations of a service on another machine, as the same methods: `connect(url, token).jobs.list()`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from ssl import SSLContext, create_default_context
from types import TracebackType
from typing import Any, Self

import httpx
from tenacity import Retrying

import trainyard
from trainyard.callbacks import ignore
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.table import API
from trainyard.proxies import exempt_loopback
from trainyard.surfaces.sdk.events import LineSplitter, NextLine, is_event_stream
from trainyard.surfaces.sdk.live_output import open_live
from trainyard.surfaces.sdk.surface import Surface
from trainyard.surfaces.sdk.wire import (
    STREAM_TIMEOUT_S,
    Heard,
    HttpExchange,
    Pause,
    Step,
    conversation,
    encode_headers,
    request_words,
    retry_policy,
)

TOKEN_VARIABLE = "TRAINYARD_TOKEN"
TIMEOUT_S = 600.0
"""For one answer: a plan that measures trains ten steps."""
CONNECT_S = 10.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=4.0)
"""uvicorn, where nothing else is set, ends a connection that is idle for five seconds."""
SCHEMES = ("http://", "https://")


class RemoteSurface(Surface):
    """The operations of a service. Close it, or use it in `with`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        super().__init__(self._call)

    def _call(self, name: str, fields: JsonObject) -> Any:
        live = open_live(name, fields)
        talk = conversation(name, fields, live.note_job if live else ignore)
        with ExitStack() as stack:
            steps = BlockingSteps(self._client, stack)
            try:
                step = next(talk)
                while True:
                    step = talk.send(steps.run_step(step))
            except StopIteration as end:
                if live:
                    live.end(end.value)
                return end.value

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class BlockingSteps:
    """The steps of a conversation by a blocking client; a stream that they open is closed with `stack`."""

    def __init__(self, client: httpx.Client, stack: ExitStack) -> None:
        self.client, self.stack = client, stack
        self.lines: Iterator[str] = iter(())

    def run_step(self, step: Step) -> Heard:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, NextLine):
            try:
                return next(self.lines, None)
            except httpx.RequestError:  # the stream was cut off
                return None
        send = self.open_stream if step.is_stream else self.send
        return Retrying(**retry_policy(step))(send, step)

    def send(self, exchange: HttpExchange) -> httpx.Response:
        return self.client.request(**request_words(exchange))

    def open_stream(self, exchange: HttpExchange) -> httpx.Response:
        self.stack.close()  # the stream before it was cut off
        stream = self.client.stream(**request_words(exchange), timeout=stream_timeout())
        response = self.stack.enter_context(stream)
        if not is_event_stream(response):
            response.read()
            return response
        splitter = LineSplitter()
        self.lines = (line for text in response.iter_text() for line in splitter.feed(text))
        return response


def stream_timeout() -> httpx.Timeout:
    return httpx.Timeout(STREAM_TIMEOUT_S, connect=CONNECT_S)


def connect(
    url: str = "http://127.0.0.1:8898", token: str = "", *, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> RemoteSurface:
    """Return the operations of the service at `url`.

    Args:
        url: such as https://train.example:8898.
        token: default: the environment variable TRAINYARD_TOKEN.
        ca_file: certificates (PEM) that the service's one is verified with; default: those of the system.
        timeout_s: for one answer.

    Raises `InvalidInput` (`E-PARAMETER`) for an address that is not HTTP, and for a token with a line end.
    """
    return RemoteSurface(httpx.Client(**client_options(url, token, ca_file, timeout_s)))


def client_options(url: str, token: str, ca_file: str | None, timeout_s: float) -> JsonMapping:
    """Return the options of a client of httpx, blocking or not. Raises `InvalidInput` (`E-PARAMETER`)."""
    if not url.lower().startswith(SCHEMES):
        raise InvalidInput(
            f"{url!r} is not the address of a service.", do="Write it like https://train.example:8898.",
            code="E-PARAMETER",
        )  # fmt: skip
    exempt_loopback()
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    headers = {
        "user-agent": f"trainyard/{trainyard.__version__}",
        "accept": "application/json, */*",
        "accept-encoding": "gzip, deflate",
    }
    verify: SSLContext | bool = create_default_context(cafile=ca_file) if ca_file else True
    return {
        "base_url": url.rstrip("/").removesuffix(API),
        "headers": encode_headers({**headers, "authorization": f"Bearer {token}"} if token else headers),
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S),
        "verify": verify,
        "limits": LIMITS,
    }
