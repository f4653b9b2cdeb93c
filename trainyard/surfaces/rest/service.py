"""The process that answers: a socket, the application, and what runs next to it until a signal."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard.app.access.listeners import BehindProxy, bind_exposed, run_servers
from trainyard.app.context import ConfinedCalls
from trainyard.app.exposure import Exposure, format_host, list_host_names, require_safe, warn_of_expiry
from trainyard.app.live.service_threads import keep_live
from trainyard.app.secrets import redact_logs
from trainyard.compute.services import HOST
from trainyard.operations.table import API
from trainyard.serve.listening import bind, build_url, server_config
from trainyard.settings import Settings
from trainyard.stores.auth_string import keep_auth
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.access.confined_calls import ChildCalls
from trainyard.surfaces.access.entrance import add_logins, caller_of_request, protect
from trainyard.surfaces.openai.errors import WireErrors
from trainyard.surfaces.rest.app import build_app

LOOPBACK = Exposure()


class AnnouncingServer(uvicorn.Server):
    """uvicorn, which calls `announce` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.announce()


class AtFirstRequest:
    """An ASGI application that calls `begin` at its first request for the API."""

    def __init__(self, app: ASGIApp, begin: Callable[[], None]) -> None:
        self.app, self.begin, self.has_begun = app, begin, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.has_begun and scope["type"] == "http" and scope["path"].startswith(API):
            self.has_begun = True
            self.begin()
        await self.app(scope, receive, send)


def serve_api(
    settings: Settings, port: int, say: Callable[[str], None], exposure: Exposure = LOOPBACK, *, everybody: bool = False
) -> str:
    """Answer until SIGINT or SIGTERM. With `everybody`, who reaches it is the owner.

    Raises `LimitExceeded` (`E-PORT`), `InvalidInput` (`E-AUTH`, `E-PARAMETER`).
    """
    certificate = require_safe(exposure, everybody=everybody)
    names = list_host_names(exposure, certificate)
    keep_auth(settings)
    redact_logs(settings)
    with bind(HOST if exposure.beyond_loopback else exposure.host, port) as listener, contextlib.ExitStack() as sockets:
        url, port = build_url(listener), listener.getsockname()[1]
        exposed = [sockets.enter_context(address) for address in bind_exposed(exposure, port)]
        if certificate:
            warn_of_expiry(certificate, say)
        if everybody:
            say("every user of this machine may do everything here, without authentication (--no-auth)")

        def announce() -> None:
            scheme = "https" if certificate else "http"
            first = url if exposed else url.replace("http", scheme, 1)
            more = "".join(f" and {scheme}://{format_host(listener.getsockname()[0])}:{port}" for listener in exposed)
            say(f"the API answers at {first}/api/v1{more}; Ctrl-C ends it")

        confined = ChildCalls(settings.api_heavy_calls)
        begin = sockets.enter_context(keep_live(settings, say))
        app: ASGIApp = AtFirstRequest(
            build_guarded_app(settings, everybody=everybody, names=names, confined=confined), begin.set
        )
        app = BehindProxy(app, exposure.behind_proxy) if exposure.behind_proxy else app
        server = AnnouncingServer(server_config(app, graceful_s=5), announce)
        run_servers(server, [listener], exposed, certificate)
    return url


def build_guarded_app(
    settings: Settings, *, everybody: bool = False, names: Iterable[str] = (), confined: ConfinedCalls | None = None
) -> ASGIApp:
    """Return the whole service: the API of a home behind its checks, for clients that call it by loopback or one of
    `names`.

    With `everybody`, who reaches it is the owner. Without `confined`, this process works on every request itself.
    """
    authenticator = Authenticator(settings, everybody)
    app = build_app(settings, caller_of_request, confined)
    add_logins(app, authenticator)
    return WireErrors(protect(app, authenticator, names=names))
