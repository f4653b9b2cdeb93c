"""Boundary of a server: an exception that nothing handles becomes an answer, and the connection continues.

Starlette sends the answer of a handler of `Exception`, then raises the exception again: uvicorn logs it a second time
and closes the connection, and a client that is still sending its body may read a reset instead of the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AnswerFailures:
    """An ASGI app that answers where the one inside fails, and logs the traceback once.

    An answer that has begun cannot be replaced: the exception passes, and the server logs it and closes the connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        answer: Callable[[Request, Exception], Response],
        log: logging.Logger,
        trace: Callable[[Request], str] | None = None,
    ) -> None:
        """`answer` returns the answer in the server's shape, `trace` the id of a request in the log."""
        self.app, self.answer, self.log, self.trace = app, answer, log, trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        has_begun = has_ended = False

        async def sending(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            await send(message)
            has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            return  # it left in the middle of its body
        except Exception as error:  # the boundary
            if has_begun and not has_ended:
                raise
            request = Request(scope, receive)
            name = f"trace {self.trace(request)}" if self.trace is not None else f"{request.method} failed"
            self.log.error("%s", name, exc_info=error)
            if not has_begun:
                await self.answer(request, error)(scope, receive, send)
