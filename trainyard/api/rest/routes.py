"""One HTTP route for each operation of the table: request in, response or problem document out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import anyio.lowlevel
import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from trainyard.api.context import Caller, Context
from trainyard.api.invocation import carry_out, refuse_early, require_allowed
from trainyard.api.operations import OPERATIONS, REQUESTS, Operation, route_of
from trainyard.api.responses import Blob
from trainyard.api.rest.bodies import read_request
from trainyard.api.rest.measured import OPERATION
from trainyard.api.rest.replays import Replays, read_key
from trainyard.callbacks import ignore
from trainyard.loading import load
from trainyard.settings import Settings
from trainyard.tracing import new_traceparent, span, trace_id

Answer = Callable[[Request], Awaitable[Response]]
Authenticate = Callable[[Request], Caller]
TRACE_HEADER, TRACEPARENT = "x-trace-id", "trainyard.traceparent"
"""The header with the correlation id of an answer, and where a request's traceparent is kept."""
EVENTS_TYPE = "text/event-stream"
STREAMS = "trainyard.api."

PLAIN_PATHS = frozenset(path for path in (route_of(name)[1] for name in OPERATIONS) if "{" not in path)
"""Paths that are not read as an id, whatever the method."""


@dataclass(frozen=True)
class ApiParts:
    """What the routes work with."""

    settings: Settings
    authenticate: Authenticate
    replays: Replays


def trace_of(request: Request) -> str:
    """The correlation id of a request: the trace id of its `traceparent` (W3C Trace Context), or a new one."""
    known: str | None = request.scope.get(TRACEPARENT)
    if known is None:
        known = request.scope[TRACEPARENT] = new_traceparent(request.headers.get("traceparent", ""))
    return trace_id(known)


def add_operations(app: FastAPI, service: ApiParts) -> None:
    """Add every operation; paths without parameters come first, so that `/chains/templates` is not an id.

    Before them are the calls of a step session, of which a program makes thousands: routes are tried in their order.
    """
    for name in sorted(OPERATIONS, key=lambda one: (not is_session_call(one), path_order(route_of(one)[1]))):
        method, path = route_of(name)
        # Starlette's route: FastAPI's own resolves dependencies of a signature, a millisecond of each request.
        route = Route(path, endpoint(name, OPERATIONS[name], service), methods=[method], name=name)
        route.methods = {method}
        app.router.routes.append(route)


def is_session_call(name: str) -> bool:
    return OPERATIONS[name].keeps_replies


def path_order(path: str) -> tuple[bool, ...]:
    return tuple(part.startswith("{") for part in path.split("/"))


def operation_id(name: str) -> str:
    """`jobs create` is `jobs_create`."""
    return name.replace(" ", "_").replace("-", "_")


def endpoint(name: str, operation: Operation, service: ApiParts) -> Answer:
    """What answers a route."""

    in_braces = "{" in route_of(name)[1]

    async def answer(request: Request) -> Response:
        if in_braces and request.scope["path"] in PLAIN_PATHS:  # another method of a path such as /chains/templates
            raise HTTPException(405)
        trace = trace_of(request)
        with span(name, request.scope[TRACEPARENT]):
            answered = await answer_within(request, trace)
        answered.raw_headers.append((TRACE_HEADER.encode(), trace.encode()))
        return answered

    async def answer_within(request: Request, trace: str) -> Response:
        caller = service.authenticate(request)
        context = Context(
            service.settings,
            say=ignore,
            caller=caller,
            surface="rest",
            trace=trace,
            idempotency_key=read_key(request),
        )
        model = load(REQUESTS + operation.request)
        refuse_early(name, model, context)
        given = await read_request(model, request, operation.body)
        if operation.stream and EVENTS_TYPE in request.headers.get("accept", ""):
            require_allowed(name, given, context)
            return await stream(load(STREAMS + operation.stream), given, context, request)
        work = partial(carry_out, name, given, context)
        if context.idempotency_key and request.method != "GET" and not operation.keeps_replies:
            body = await asyncio.to_thread(
                service.replays.once, caller, name, given, context.idempotency_key, partial(as_json, work)
            )
            return respond_bytes(body, operation.status)
        return respond(await asyncio.to_thread(work), operation.status, request)

    setattr(answer, OPERATION, name)  # for the metrics
    return answer


def as_json(work: Callable[[], BaseModel]) -> bytes:
    return work().model_dump_json().encode()


def respond_bytes(body: bytes, status: int) -> Response:
    return Response(body, status_code=status, media_type="application/json", headers=dict(links_of(orjson.loads(body))))


def respond(result: BaseModel, status: int, request: Request) -> Response:
    """The answer with a response: bytes of a file, nothing if the client has it already (ETag), or JSON."""
    if isinstance(result, Blob):
        return FileResponse(result.path, media_type=result.media_type, headers={"etag": f'"{result.sha256}"'})
    etag = getattr(result, "etag", None) if has_etag(type(result)) else None
    if etag and request.method == "GET" and f'"{etag}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"etag": f'"{etag}"'})
    headers = {"etag": f'"{etag}"'} if isinstance(etag, str) and etag else {}
    return Response(
        result.model_dump_json().encode(), status_code=status, media_type="application/json", headers=headers
    )


@cache
def has_etag(kind: type[BaseModel]) -> bool:
    """Whether responses of a class have an etag: pydantic takes long to say that an object has none."""
    return "etag" in kind.model_fields or hasattr(kind, "etag")


def links_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    etag = found.get("etag")
    return {"etag": f'"{etag}"'} if isinstance(etag, str) and etag else {}


async def stream(follow: Any, given: Any, context: Context, request: Request) -> Response:
    """The answer as server-sent events (WHATWG HTML, 9.2); `Last-Event-ID` continues one that was interrupted.

    The first event is awaited: what cannot be followed is refused with a problem document, like any other request.
    """
    events = follow(given, context, request.headers.get("last-event-id"))
    first = await anext(events)

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(events):
            yield first.encode()
            async for event in events:
                await anyio.lowlevel.checkpoint()  # a client that is gone takes whatever it is sent without waiting
                yield event.encode()

    return StreamingResponse(lines(), media_type=EVENTS_TYPE, headers={"cache-control": "no-store"})
