"""The operations of a service on another machine, as the same methods: `connect(url, token).jobs.list()`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from ssl import SSLContext, create_default_context
from types import TracebackType
from typing import Any, Self
from urllib.request import getproxies, proxy_bypass

import httpx

import trainyard
from trainyard.api.operations import API
from trainyard.api.sdk.events import LineSplitter, NextLine, is_event_stream
from trainyard.api.sdk.live_output import open_live
from trainyard.api.sdk.surface import Surface
from trainyard.api.sdk.wire import STREAM_TIMEOUT_S, Heard, HttpExchange, Pause, Step, conversation
from trainyard.callbacks import ignore

TOKEN_VARIABLE = "TRAINYARD_TOKEN"
TIMEOUT_S = 600.0
"""For one answer: a plan that measures trains ten steps."""
CONNECT_S = 10.0


class RemoteSurface(Surface):
    """The operations of a service. Close it, or use it in `with`."""

    def __init__(self, client: httpx.Client, direct: DirectRequests | None = None) -> None:
        self._client, self._direct = client, direct
        super().__init__(self._carry_out)

    def _carry_out(self, name: str, fields: dict[str, Any]) -> Any:
        live = open_live(name, fields)
        talk = conversation(name, fields, live.note_job if live else ignore)
        with ExitStack() as stack:
            steps = BlockingSteps(self._client, self._direct, stack)
            try:
                step = next(talk)
                while True:
                    step = talk.send(steps.carry_out(step))
            except StopIteration as end:
                if live:
                    live.end(end.value)
                return end.value

    def close(self) -> None:
        self._client.close()
        if self._direct is not None:
            self._direct.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class DirectRequests:
    """Requests over a transport of httpx, without the cookies, redirects and logins of its client.

    The service uses none of them, and a program calls a step session thousands of times.
    """

    def __init__(self, client: httpx.Client, verify: SSLContext | bool) -> None:
        self.transport = httpx.HTTPTransport(verify=verify)
        self.base, self.headers = str(client.base_url).rstrip("/"), client.headers.multi_items()
        self.extensions = {"timeout": client.timeout.as_dict()}

    def request(self, method: str, url: str, params: Any, headers: Mapping[str, str], content: Any) -> httpx.Response:
        """The whole response. Raises `httpx.TransportError`."""
        request = httpx.Request(
            method, self.base + url, params=params or None, headers=[*self.headers, *headers.items()],
            content=content, extensions=self.extensions,
        )  # fmt: skip
        with closing(self.transport.handle_request(request)) as response:
            response.request = request
            response.read()
        return response

    def close(self) -> None:
        self.transport.close()


def needs_proxy(url: httpx.URL) -> bool:
    """Whether the environment names a proxy for an address; the client of httpx then uses it."""
    return bool({url.scheme, "all"} & getproxies().keys()) and not proxy_bypass(url.host)


class BlockingSteps:
    """Carries out the steps of a conversation; a stream that it opens is closed with `stack`."""

    def __init__(self, client: httpx.Client, direct: DirectRequests | None, stack: ExitStack) -> None:
        self.client, self.direct, self.stack = client, direct, stack
        self.lines: Iterator[str] = iter(())

    def carry_out(self, step: Step) -> Heard:
        try:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                return None
            if isinstance(step, NextLine):
                return next(self.lines, None)
            if step.is_stream:
                return self.open_stream(step)
            return (self.direct or self.client).request(**request_words(step))
        except httpx.TransportError as error:
            return error

    def open_stream(self, step: HttpExchange) -> httpx.Response:
        self.stack.close()  # the stream before it was cut off
        request = self.client.build_request(**request_words(step), timeout=stream_timeout())
        response = self.stack.enter_context(closing(self.client.send(request, stream=True)))
        if is_event_stream(response):
            splitter = LineSplitter()
            self.lines = (line for text in response.iter_text() for line in splitter.feed(text))
        else:
            response.read()
        return response


def request_words(one: HttpExchange) -> dict[str, Any]:
    """A request as httpx takes it."""
    words = {"method": one.method, "url": one.path, "params": one.params, "headers": one.headers}
    return {**words, "content": one.content}


def stream_timeout() -> httpx.Timeout:
    return httpx.Timeout(STREAM_TIMEOUT_S, connect=CONNECT_S)


def connect(
    url: str = "http://127.0.0.1:8898", token: str = "", *, ca_file: str | None = None, timeout_s: float = TIMEOUT_S
) -> RemoteSurface:
    """The operations of the service at `url`.

    Args:
        url: such as https://train.example:8898.
        token: default: the environment variable TRAINYARD_TOKEN.
        ca_file: certificates (PEM) that the service's one is verified with; default: those of the system.
        timeout_s: for one answer.
    """
    options = client_options(url, token, ca_file, timeout_s)
    client = httpx.Client(**options)
    return RemoteSurface(client, None if needs_proxy(client.base_url) else DirectRequests(client, options["verify"]))


def client_options(url: str, token: str, ca_file: str | None, timeout_s: float) -> Mapping[str, Any]:
    """The options of a client of httpx, blocking or not."""
    token = token or os.environ.get(TOKEN_VARIABLE, "")
    headers = {"user-agent": f"trainyard/{trainyard.__version__}", "accept": "application/json, */*"}
    verify: SSLContext | bool = create_default_context(cafile=ca_file) if ca_file else True
    return {
        "base_url": url.rstrip("/").removesuffix(API),
        "headers": {**headers, "authorization": f"Bearer {token}"} if token else headers,
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S),
        "verify": verify,
    }
