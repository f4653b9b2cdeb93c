"""The operations of a service on another machine, as the same methods: `connect(url, token).jobs.list()`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import lru_cache
from ssl import SSLContext, create_default_context
from types import TracebackType
from typing import Any, Self
from urllib.request import getproxies, proxy_bypass

import httpx

import trainyard
from trainyard.api.operations import API
from trainyard.api.sdk.answers import ServiceAnswer, answer_of
from trainyard.api.sdk.direct import PORTS, DirectConnections
from trainyard.api.sdk.events import LineSplitter, NextLine, is_event_stream
from trainyard.api.sdk.live_output import open_live
from trainyard.api.sdk.surface import Surface
from trainyard.api.sdk.wire import STREAM_TIMEOUT_S, Heard, HttpExchange, Pause, Step, conversation
from trainyard.callbacks import ignore
from trainyard.errors import InvalidInput
from trainyard.proxies import exempt_loopback

TOKEN_VARIABLE = "TRAINYARD_TOKEN"
TIMEOUT_S = 600.0
"""For one answer: a plan that measures trains ten steps."""
CONNECT_S = 10.0
MAX_CACHED = 1024
"""Paths whose URLs a process keeps."""


class ServiceConnection:
    """Requests of one service: small ones directly, and streams by httpx's transport.

    httpx's client is left out: it joins and parses URLs, and has cookies, redirects and hooks, which the service does
    not. Without `direct`, as behind a proxy, the transport sends all requests.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout: httpx.Timeout, transport: httpx.BaseTransport,
        direct: DirectConnections | None = None,
    ) -> None:  # fmt: skip
        self.base = str(httpx.URL(url)).rstrip("/")
        self.headers, self.transport, self.direct = headers, transport, direct
        self.extensions = {"timeout": timeout.as_dict()}

    def send(self, one: HttpExchange) -> ServiceAnswer:
        """The whole answer. Raises `httpx.TransportError`."""
        if self.direct is not None:
            return self.direct.send(one.method, self.url_of(one), one.headers, one.content)
        response = self.open(one, self.extensions)
        try:
            response.read()
        except BaseException:
            response.close()
            raise
        return answer_of(response)

    def open(self, one: HttpExchange, extensions: dict[str, Any]) -> httpx.Response:
        """The response, of which nothing but the head is read. Raises `httpx.TransportError`."""
        request = httpx.Request(
            one.method, self.url_of(one), headers={**self.headers, **one.headers}, content=one.content,
            extensions=extensions,
        )  # fmt: skip
        response = self.transport.handle_request(request)
        response.request = request
        return response

    def url_of(self, one: HttpExchange) -> httpx.URL:
        url = known_url(self.base + one.path)
        return url.copy_merge_params(one.params) if one.params else url

    def close(self) -> None:
        self.transport.close()
        if self.direct is not None:
            self.direct.close()


@lru_cache(MAX_CACHED)
def known_url(text: str) -> httpx.URL:
    return httpx.URL(text)


class RemoteSurface(Surface):
    """The operations of a service. Close it, or use it in `with`."""

    def __init__(self, connection: ServiceConnection) -> None:
        self._connection = connection
        super().__init__(self._carry_out)

    def _carry_out(self, name: str, fields: dict[str, Any]) -> Any:
        live = open_live(name, fields)
        talk = conversation(name, fields, live.note_job if live else ignore)
        with ExitStack() as stack:
            steps = BlockingSteps(self._connection, stack)
            try:
                step = next(talk)
                while True:
                    step = talk.send(steps.carry_out(step))
            except StopIteration as end:
                if live:
                    live.end(end.value)
                return end.value

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class BlockingSteps:
    """Carries out the steps of a conversation; a stream that it opens is closed with `stack`."""

    def __init__(self, connection: ServiceConnection, stack: ExitStack) -> None:
        self.connection, self.stack = connection, stack
        self.lines: Iterator[str] = iter(())

    def carry_out(self, step: Step) -> Heard:
        try:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                return None
            if isinstance(step, NextLine):
                return next(self.lines, None)
            return self.open_stream(step) if step.is_stream else self.connection.send(step)
        except httpx.TransportError as error:
            return error

    def open_stream(self, step: HttpExchange) -> ServiceAnswer:
        self.stack.close()  # the stream before it was cut off
        opened = self.connection.open(step, {"timeout": stream_timeout().as_dict()})
        response = self.stack.enter_context(closing(opened))
        head = answer_of(response, content=b"")
        if not is_event_stream(head):
            return answer_of(response, response.read())
        splitter = LineSplitter()
        self.lines = (line for text in response.iter_text() for line in splitter.feed(text))
        return head


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

    Raises `InvalidInput` (`E-PARAMETER`) for what is not an address of HTTP, and for a token with a line end.
    """
    options = client_options(url, token, ca_file, timeout_s)
    base, headers, timeout = httpx.URL(options["base_url"]), options["headers"], options["timeout"]
    proxy = proxy_for(base)
    context = httpx.create_ssl_context(options["verify"]) if base.scheme == "https" else None
    transport = httpx.HTTPTransport(verify=context or True, proxy=proxy)
    direct = None if proxy else DirectConnections(base, headers, timeout, context)
    return RemoteSurface(ServiceConnection(str(base), headers, timeout, transport, direct))


def proxy_for(url: httpx.URL) -> str | None:
    """The proxy that the environment names for a service (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`)."""
    known = getproxies()
    found = known.get(url.scheme) or known.get("all")
    if not found or proxy_bypass(url.host):
        return None
    return found if "://" in found else f"http://{found}"


def client_options(url: str, token: str, ca_file: str | None, timeout_s: float) -> Mapping[str, Any]:
    """The options of a client of httpx, blocking or not. Raises `InvalidInput` (`E-PARAMETER`)."""
    if not url.lower().startswith(tuple(f"{scheme}://" for scheme in PORTS)):
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
        "headers": {**headers, "authorization": f"Bearer {token}"} if token else headers,
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_S),
        "verify": verify,
    }
