"""Server of one application on two kinds of sockets: loopback without TLS, the other addresses with it.

Both servers run in one event loop, so that the application has one state; the loopback one gets the signals and runs
the application's start and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from trainyard.app.access.guard import JSON_TYPE, RefusalBody, send_answer
from trainyard.app.exposure import Certificate, Exposure, resolve_addresses
from trainyard.serve.listening import bind, is_loopback

NOT_THE_PROXY = RefusalBody(b'{"code": "E-REQUEST-REFUSED", "detail": "Use the proxy of this server."}', JSON_TYPE)


class SecondServer(uvicorn.Server):
    """uvicorn without signals and lifespan, which another one of the same loop has."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class BehindProxy:
    """An ASGI app that trusts one proxy, and answers only it beyond loopback."""

    def __init__(self, app: ASGIApp, proxy: str) -> None:
        self.app, self.proxy = app, proxy
        self.forwarded = ProxyHeadersMiddleware(app, trusted_hosts=[proxy])  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        client = (scope.get("client") or ("",))[0]
        if client == self.proxy:
            return await self.forwarded(scope, receive, send)  # type: ignore[arg-type]
        if is_loopback(client):
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": 1008, "reason": "E-REQUEST-REFUSED"})
        await send_answer(send, 403, NOT_THE_PROXY)


def bind_exposed(exposure: Exposure, port: int) -> list[socket.socket]:
    """Sockets beyond loopback, on the port of the loopback one. Raises what `bind` raises, and leaves none open."""
    bound: list[socket.socket] = []
    try:
        for address in resolve_addresses(exposure.host) if exposure.beyond_loopback else ():
            bound.append(bind(address, port))
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def run_servers(
    first: uvicorn.Server,
    sockets: list[socket.socket] | None,
    exposed: Sequence[socket.socket] = (),
    certificate: Certificate | None = None,
) -> None:
    """Answer until a signal: `first` on its sockets, and the same application on those that are exposed."""
    tls = {"ssl_certfile": certificate.path, "ssl_keyfile": certificate.key} if certificate else {}
    if not exposed:  # loopback has the certificate where nothing else is there
        first.config = copy_config(first.config, **tls)
        return first.run(sockets=sockets)
    second = SecondServer(copy_config(first.config, lifespan="off", **tls))
    second_sockets = list(exposed)

    async def serve_both() -> None:
        running = asyncio.create_task(second.serve(sockets=second_sockets))
        try:
            await first.serve(sockets=sockets)
        finally:
            second.should_exit = True
            await running

    with asyncio.Runner(loop_factory=first.config.get_loop_factory()) as runner:
        runner.run(serve_both())


def copy_config(config: uvicorn.Config, **changed: object) -> uvicorn.Config:
    """Return a configuration of uvicorn for the same application."""
    names = (
        "app", "host", "port", "http", "ws", "log_level", "access_log", "timeout_keep_alive",
        "timeout_graceful_shutdown", "ws_ping_interval", "ws_ping_timeout", "proxy_headers", "server_header",
    )  # fmt: skip
    return uvicorn.Config(**{**{name: getattr(config, name) for name in names}, **changed})
