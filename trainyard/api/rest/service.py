"""The process that answers: a socket, the application, and what runs next to it until a signal."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from trainyard.api.access.authentication import Authenticator
from trainyard.api.access.browser import add_logins
from trainyard.api.access.entrance import caller_of_request, protect
from trainyard.api.access.guarding import Guard
from trainyard.api.live.keeping import keep_live
from trainyard.api.rest.app import build_app
from trainyard.serve.listening import bind, server_config, url_of
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


def serve_api(settings: Settings, host: str, port: int, say: Callable[[str], None]) -> str:
    """Answer until SIGINT or SIGTERM. Raises `LimitExceeded` (`E-PORT`), `InvalidInput` (`E-AUTH`)."""
    keep_auth(settings)
    with bind(host, port) as listener:
        url = url_of(listener)

        def announce() -> None:
            say(f"the API answers at {url}/api/v1; Ctrl-C ends it")

        with keep_live(settings, say):
            AnnouncingServer(server_config(guarded_app(settings), graceful_s=5), announce).run(sockets=[listener])
    return url


def guarded_app(settings: Settings, *, everybody: bool = False) -> Guard:
    """The whole service: the API of a home behind its checks. With `everybody`, who reaches it is the owner."""
    authenticator = Authenticator(settings, everybody)
    app = build_app(settings, caller_of_request)
    add_logins(app, authenticator)
    return protect(app, authenticator)
