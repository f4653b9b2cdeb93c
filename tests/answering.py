"""The service of this test's home behind a real socket, in a thread, with callers of every kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.requests import Request

from trainyard.app.context import Caller
from trainyard.errors import Denied
from trainyard.operations.table import Scope
from trainyard.serve.listening import bind
from trainyard.settings import settings
from trainyard.surfaces.rest.app import build_app

CALLERS = {
    "owner": Caller("owner", remote=True),
    "reader": Caller("reader", scope=Scope.READ, remote=True),
    "acme": Caller("acme", tenant="acme", remote=True),
}


def authenticate(request: Request) -> Caller:
    key = request.headers.get("x-api-key", "").removeprefix("tml-")
    caller = CALLERS.get(request.headers.get("authorization", key).removeprefix("Bearer "))
    if caller is None:
        raise Denied("There is no token.", do="Send one.", code="E-AUTH")
    return caller


@contextmanager
def answering(certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The application behind a real socket, in a thread; with a certificate and its key, over TLS."""
    tls = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]} if certificate else {}
    app = build_app(settings(), authenticate)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", **tls)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
