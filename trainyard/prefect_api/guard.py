"""Run the Prefect server behind a guard; `trainyard up` starts it.

`python -m trainyard.prefect_api.guard --port 4200`

Prefect's own app accepts every Host, lets a page of any origin read it, and reads a text/plain body as JSON: any page
in a browser of this machine could create a deployment and start it. The guard (`app/access/guard.py`) checks
each request first. Access is then controlled by Prefect's basic authentication, whose wrong credentials are counted.
Origins come from `PREFECT_SERVER_CORS_ALLOWED_ORIGINS`. Connections have the deadlines and caps of all servers here
(`serve/listening.py`), and websockets, which the UI and the workers need.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hmac
import json
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.app.access.guard import JSON_TYPE, POLICY_VIOLATION, Guard, Refusal, RefusalBody, send_answer
from trainyard.app.access.limits import TooMany, WrongCredentials
from trainyard.app.access.listeners import BehindProxy, bind_exposed, run_servers
from trainyard.app.exposure import Exposure, list_host_names, require_safe
from trainyard.app.services import NO_AUTH
from trainyard.serve.listening import BoundedProtocol, is_loopback
from trainyard.settings import settings

HOST = "127.0.0.1"
SUBPROTOCOL = "prefect"
"""Of a websocket whose first message is its credentials."""
DOCUMENT_PATHS = ("/openapi.json",)
CREDENTIALS_S = 10.0
"""How long a websocket may take for them."""


def format_refusal(refusal: Refusal) -> RefusalBody:
    """Return a refusal as Prefect words its own."""
    return RefusalBody(json.dumps({"exception_message": f"{refusal.code}: {refusal.text}"}).encode(), JSON_TYPE)


@dataclass
class CountedCredentials:
    """An ASGI app that refuses an address which sent wrong credentials too often, and websockets that send none.

    Loopback is not counted: the workers and flows of this machine come from there, and another user of it could lock
    them out.
    """

    app: ASGIApp
    wrong: WrongCredentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        address = (scope.get("client") or ("",))[0]
        if is_loopback(address):
            return await self.app(scope, add_deadline(scope, receive), send)
        try:
            self.wrong.require_patience(address)
        except TooMany as error:
            return await refuse_too_many(scope, receive, send, error)
        await self.app(scope, add_deadline(scope, receive), self.counting(address, scope, send))

    def counting(self, address: str, scope: Scope, send: Send) -> Send:
        """Note an answer that says that the credentials were wrong; one that there were none does not count."""
        has_some = scope["type"] == "websocket" or "authorization" in Headers(scope=scope)

        async def sending(message: Message) -> None:
            is_refusal = message.get("status") == 401 or message.get("code") == POLICY_VIOLATION
            if has_some and is_refusal:
                self.wrong.note(address)
            await send(message)

        return sending


async def refuse_too_many(scope: Scope, receive: Receive, send: Send, error: TooMany) -> None:
    """Answer in place of Prefect, without a look at the credentials."""
    if scope["type"] == "websocket":
        await receive()
        return await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
    body = format_refusal(Refusal(429, error.code, f"{error.what} {error.do}"))
    await send_answer(send, 429, body, [(b"retry-after", str(error.retry_after_s).encode())])


def add_deadline(scope: Scope, receive: Receive) -> Receive:
    """End a websocket that does not send its credentials: Prefect would wait for them without end."""
    if scope["type"] != "websocket" or SUBPROTOCOL not in scope.get("subprotocols", ()):
        return receive
    is_waiting = True

    async def receiving() -> Message:
        nonlocal is_waiting
        if not is_waiting:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), CREDENTIALS_S)
        except TimeoutError:
            message = {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
        is_waiting = message["type"] == "websocket.connect"
        return message

    return receiving


class GuardedDocument:
    """An ASGI app that answers Prefect's OpenAPI document for callers with credentials, and builds it once.

    Prefect writes it again for each request, two seconds of its event loop, and asks for no credentials.
    """

    def __init__(self, app: FastAPI, auth_string: str | None) -> None:
        self.app, self.auth_string = app, auth_string
        self.document: bytes | None = None
        self.lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") not in DOCUMENT_PATHS:
            return await self.app(scope, receive, send)
        if not self.is_authorized(Headers(scope=scope).get("authorization", "")):
            refusal = Refusal(401, "E-AUTH", "The OpenAPI document needs the credentials of this server.")
            return await send_answer(send, 401, format_refusal(refusal))
        await send_answer(send, 200, RefusalBody(await self.read_document(), JSON_TYPE))

    async def read_document(self) -> bytes:
        async with self.lock:
            if self.document is None:
                self.document = await asyncio.to_thread(self.build)
            return self.document

    def build(self) -> bytes:
        return json.dumps(self.app.openapi()).encode()

    def is_authorized(self, header: str) -> bool:
        if self.auth_string is None:
            return True
        expected = base64.b64encode(self.auth_string.encode()).decode()
        return hmac.compare_digest(header.encode(), f"Basic {expected}".encode())


def main() -> None:
    """Serve until this process is ended: what `prefect server start` does for one process, behind the guard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(NO_AUTH, action="store_true", help="passed so that it is visible in the list of processes")
    for name, help_text in (("host", "also"), ("tls-cert", "PEM"), ("tls-key", "PEM"), ("behind-proxy", "address")):
        parser.add_argument(f"--{name}", default="", help=help_text)
    parser.add_argument("--allow-host", action="append", default=[])
    args = parser.parse_args()
    server = get_current_settings().server
    if server.api.auth_string is None and not args.no_auth:
        parser.error("PREFECT_SERVER_API_AUTH_STRING is not set")
    names = tuple(args.allow_host)
    exposure = Exposure(args.host or HOST, args.tls_cert, args.tls_key, args.behind_proxy, names)
    certificate = require_safe(exposure, everybody=args.no_auth)
    origins = filter(None, server.api.cors_allowed_origins.split(","))
    secret = server.api.auth_string
    prefect = GuardedDocument(create_app(final=True), secret.get_secret_value() if secret is not None else None)
    counted = CountedCredentials(prefect, WrongCredentials(settings().api_failed_logins))
    app: ASGIApp = Guard(counted, origins, format_refusal, names=list_host_names(exposure, certificate))
    config = uvicorn.Config(
        BehindProxy(app, exposure.behind_proxy) if exposure.behind_proxy else app,
        host=HOST,
        port=args.port,
        http=BoundedProtocol,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
        proxy_headers=False,
    )
    with contextlib.ExitStack() as sockets:
        exposed = [sockets.enter_context(socket_) for socket_ in bind_exposed(exposure, args.port)]
        run_servers(uvicorn.Server(config), None, exposed, certificate)


if __name__ == "__main__":
    main()
