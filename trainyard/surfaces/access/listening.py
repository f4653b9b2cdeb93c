"""Serve an application on loopback, and beyond it with TLS or behind a proxy, until a signal."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from trainyard.app.access.listeners import BehindProxy, bind_exposed, run_servers
from trainyard.app.exposure import Exposure, format_host, list_host_names, require_safe, warn_of_expiry
from trainyard.app.secrets import redact_logs
from trainyard.compute.services import HOST
from trainyard.serve.listening import bind, build_url, server_config
from trainyard.settings import Settings
from trainyard.stores.auth_string import keep_auth


class AnnouncingServer(uvicorn.Server):
    """uvicorn, which calls `announce` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.announce()


def serve_guarded(
    settings: Settings,
    build: Callable[[tuple[str, ...]], ASGIApp],
    port: int,
    exposure: Exposure,
    say: Callable[[str], None],
    *,
    everybody: bool,
    title: Callable[[str], str],
) -> str:
    """Answer until SIGINT or SIGTERM, and return the address. `build` gets the names by which clients may call.

    With `everybody`, who reaches it is the owner. `title` says what answers at an address.
    Raises `LimitExceeded` (`E-PORT`), `InvalidInput` (`E-AUTH`, `E-PARAMETER`).
    """
    certificate = require_safe(exposure, everybody=everybody)
    names = tuple(list_host_names(exposure, certificate))
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
            say(f"{title(first)}{more}; Ctrl-C ends it")

        app = build(names)
        app = BehindProxy(app, exposure.behind_proxy) if exposure.behind_proxy else app
        server = AnnouncingServer(server_config(app, graceful_s=5), announce)
        run_servers(server, [listener], exposed, certificate)
    return url
