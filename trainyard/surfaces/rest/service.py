"""The process that answers: a socket, the application, and what runs next to it until a signal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard.app.context import ConfinedCalls
from trainyard.app.exposure import Exposure
from trainyard.app.live.service_threads import keep_audited, keep_live
from trainyard.operations.table import API
from trainyard.settings import Settings
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.access.confined_calls import ChildCalls
from trainyard.surfaces.access.entrance import add_logins, caller_of_request, protect
from trainyard.surfaces.access.listening import serve_guarded
from trainyard.surfaces.openai.errors import WireErrors
from trainyard.surfaces.rest.app import build_app

LOOPBACK = Exposure()


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
    with contextlib.ExitStack() as exit_stack:
        exit_stack.enter_context(keep_audited(settings, say))

        def build(names: tuple[str, ...]) -> ASGIApp:
            confined = ChildCalls(settings.api_heavy_calls)
            begin = exit_stack.enter_context(keep_live(settings, say))
            app = build_guarded_app(settings, everybody=everybody, names=names, confined=confined)
            return AtFirstRequest(app, begin.set)

        return serve_guarded(
            settings, build, port, exposure, say, everybody=everybody,
            title=lambda url: f"the API answers at {url}/api/v1",
        )  # fmt: skip


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
