"""The knowledge graph over HTTP: `trainyard serve --role graph --port 9081`.

    POST /v1/graph/mutate   {"mutations": [{tenant, stream, name, content_sha256, version, entities, relations}]}
    POST /v1/graph/has      {"documents": [key…]}
    POST /v1/graph/query    {"cypher": …, "parameters": {…}}
    GET  /v1/graph/stats    GET /v1/graph/dump   (?tenant=…)          GET  /health

The idempotency key of a mutation is its document (content hash, stream, version): sent twice, it is applied once. Off
loopback it starts only with a token. Errors have the shape of every error here: {"error": {code, what, why, do, kind}}.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import anyio.to_thread
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.serve.listening import bind_guarded, has_token, list_allowed_hosts, server_config
from trainyard.stores.graph.contract import Graph
from trainyard.stores.graph.facts import parse_mutation

MAX_BODY_BYTES = 64 << 20
MAX_MUTATIONS = 5_000
MAX_QUERIES = 4
"""Queries at a time, the waiting ones included: a fifth would make all others wait longer."""
STATUS = {InvalidInput: 422, NotFound: 404, Conflict: 409, LimitExceeded: 413, Unavailable: 503}


class GraphServer:
    """The routes over one graph; calls reach the graph one at a time, on a thread of their own."""

    def __init__(self, graph: Graph, token: str | None = None) -> None:
        self.graph, self.token = graph, token
        self.queries = threading.BoundedSemaphore(MAX_QUERIES)

    def app(self, host: str = "127.0.0.1") -> Starlette:
        routes = [
            Route("/health", self.route(self.health, guarded=False)),
            Route("/v1/graph/mutate", self.route(self.mutate), methods=["POST"]),
            Route("/v1/graph/has", self.route(self.has), methods=["POST"]),
            Route("/v1/graph/query", self.route(self.query), methods=["POST"]),
            Route("/v1/graph/stats", self.route(self.stats)),
            Route("/v1/graph/dump", self.route(self.dump)),
        ]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list_allowed_hosts(host))
        return Starlette(routes=routes, middleware=[hosts], exception_handlers={TrainyardError: refusal})

    def route(
        self, work: Callable[[Request, bytes], Any], *, guarded: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if guarded and not has_token(request, self.token):
                raise Unavailable(
                    "The bearer token is missing or wrong.", do="Set TRAINYARD_TOKEN on both sides.", code="E-AUTH"
                )
            body = await read_body(request) if request.method == "POST" else b""
            return build_json_response(await anyio.to_thread.run_sync(work, request, body))

        return answer

    def health(self, _request: Request, _body: bytes) -> dict[str, object]:
        return {"status": "ok"}

    def mutate(self, _request: Request, body: bytes) -> JsonObject:
        mutations = read_field(body, "mutations", list)
        if len(mutations) > MAX_MUTATIONS:
            raise LimitExceeded(
                f"One request takes at most {MAX_MUTATIONS:,} mutations.", do="Send several.", code="E-GRAPH-QUERY"
            )
        return {
            "results": [
                asdict(result) for result in self.graph.mutate([parse_mutation(mutation) for mutation in mutations])
            ]
        }

    def has(self, _request: Request, body: bytes) -> JsonObject:
        return {
            "documents": sorted(self.graph.has([str(document) for document in read_field(body, "documents", list)]))
        }

    def query(self, _request: Request, body: bytes) -> JsonObject:
        cypher, parameters = read_field(body, "cypher", str), read_field(body, "parameters", dict, {})
        if not self.queries.acquire(blocking=False):
            raise Unavailable(
                f"{MAX_QUERIES} queries are running or waiting.", do="Ask again later.", code="E-GRAPH-BUSY"
            )
        try:
            return {"rows": self.graph.query(cypher, parameters)}
        finally:
            self.queries.release()

    def stats(self, request: Request, _body: bytes) -> dict[str, object]:
        return asdict(self.graph.stats(request.query_params.get("tenant")))

    def dump(self, request: Request, _body: bytes) -> dict[str, object]:
        return {"lines": list(self.graph.dump(request.query_params.get("tenant")))}


def read_field(body: bytes, name: str, kind: type, default: Any = None) -> Any:
    """Return one field of a JSON object, or the default for none. Raises `InvalidInput` (`E-GRAPH-QUERY`)."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_body("it is not valid JSON") from error
    value = content.get(name) if isinstance(content, dict) else None
    value = default if value is None else value
    if not isinstance(value, kind):
        raise bad_body(f"it has no {name} of the kind that is expected")
    return value


def bad_body(why: str) -> InvalidInput:
    return InvalidInput(
        "The body of the request cannot be used.", why=f"{why[0].upper()}{why[1:]}.",
        do="See docs/graph.md for the shape.", code="E-GRAPH-QUERY",
    )  # fmt: skip


async def read_body(request: Request) -> bytes:
    """Return a JSON body, at most 64 MiB; a form, which any web page can send to loopback, is refused by its content
    type.
    """
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise bad_body("it is not sent as application/json")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise LimitExceeded(
                    f"The body is longer than {MAX_BODY_BYTES:,} bytes.",
                    do="Send less at a time.",
                    code="E-GRAPH-QUERY",
                )
    except ClientDisconnect as error:
        raise bad_body("the connection ended before it did") from error
    return bytes(body)


def build_json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value, default=str), status_code=status, media_type="application/json")


def refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TrainyardError)
    statuses = (code for kind, code in STATUS.items() if isinstance(error, kind))
    status = 401 if error.code == "E-AUTH" else next(statuses, 500)
    return build_json_response({"error": {"kind": type(error).__name__, **error.as_dict()}}, status)


def bind_socket(host: str, port: int, token: str | None) -> socket.socket:
    """Return a bound socket. Raises `InvalidInput` (`E-AUTH`) or `LimitExceeded` (`E-PORT`)."""
    return bind_guarded(host, port, token, "Off loopback anybody could read and write the graph.")


def serve(graph: Graph, listener: socket.socket, token: str | None) -> None:
    """Answer until SIGINT or SIGTERM."""
    app = GraphServer(graph, token).app(str(listener.getsockname()[0]))
    uvicorn.Server(server_config(app, graceful_s=5)).run(sockets=[listener])
