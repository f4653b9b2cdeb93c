"""The Prefect server behind a guard: `python -m trainyard.api.runs.guard --port 4200`, started by `trainyard up`.

Prefect's own app accepts every Host, lets a page of any origin read it, and reads a text/plain body as JSON: any page
in a browser of this machine could create a deployment and start it. The guard (`api/access/guarding.py`) checks each
request first. Access is then controlled by Prefect's basic authentication. Origins come from
`PREFECT_SERVER_CORS_ALLOWED_ORIGINS`.
"""

from __future__ import annotations

import argparse
import contextlib
import json

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.types import ASGIApp

from trainyard.api.access.exposure import Exposure, names_for, require_safe
from trainyard.api.access.guarding import JSON_TYPE, Guard, Refusal, RefusalBody
from trainyard.api.access.listeners import BehindProxy, bind_exposed, run_servers
from trainyard.api.stack import NO_AUTH

HOST = "127.0.0.1"


def as_prefect_answers(refusal: Refusal) -> RefusalBody:
    """A refusal as Prefect words its own."""
    return RefusalBody(json.dumps({"exception_message": f"{refusal.code}: {refusal.text}"}).encode(), JSON_TYPE)


def main() -> None:
    """Serve until this process is ended: what `prefect server start` does for one process, behind the guard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(NO_AUTH, action="store_true", help="passed so that it is visible in the list of processes")
    for name, help_text in (("host", "also"), ("tls-cert", "PEM"), ("tls-key", "PEM"), ("behind-proxy", "address")):
        parser.add_argument(f"--{name}", default="", help=help_text)
    parser.add_argument("--allow-host", action="append", default=[])
    given = parser.parse_args()
    server = get_current_settings().server
    if server.api.auth_string is None and not given.no_auth:
        parser.error("PREFECT_SERVER_API_AUTH_STRING is not set")
    names = tuple(given.allow_host)
    chosen = Exposure(given.host or HOST, given.tls_cert, given.tls_key, given.behind_proxy, names)
    certificate = require_safe(chosen, everybody=given.no_auth)
    origins = filter(None, server.api.cors_allowed_origins.split(","))
    app: ASGIApp = Guard(create_app(final=True), origins, as_prefect_answers, names=names_for(chosen, certificate))
    config = uvicorn.Config(
        BehindProxy(app, chosen.behind_proxy) if chosen.behind_proxy else app,
        host=HOST,
        port=given.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
        proxy_headers=False,
    )
    with contextlib.ExitStack() as sockets:
        exposed = [sockets.enter_context(one) for one in bind_exposed(chosen, given.port)]
        run_servers(uvicorn.Server(config), None, exposed, certificate)


if __name__ == "__main__":
    main()
