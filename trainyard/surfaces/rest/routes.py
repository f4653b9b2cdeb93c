"""HTTP routes, one for each operation of the table: request in, response or problem document out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import orjson
from anyio import CapacityLimiter
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from trainyard.app.context import Caller, ConfinedCalls, Context
from trainyard.app.responses import Blob
from trainyard.app.tenant_view import hide_error, hide_places_in_json, is_stranger
from trainyard.callbacks import call_now, ignore
from trainyard.cancellation import CallerLeft, Departure
from trainyard.errors import TrainyardError
from trainyard.loading import load_object
from trainyard.operations.table import OPERATIONS, Operation, find_route
from trainyard.settings import Settings
from trainyard.surfaces.bodies import (
    BATCHES,
    FILE_TYPE,
    TRACEPARENT,
    USUAL,
    InvalidFields,
    media_type,
    read_request,
    read_trace_id,
    read_upload,
)
from trainyard.surfaces.invocation import execute_operation, refuse_early, require_allowed
from trainyard.surfaces.problems import answer_problem
from trainyard.surfaces.rest.measured import OPERATION
from trainyard.surfaces.rest.replays import Replays, read_key
from trainyard.surfaces.spool import INLINE_BYTES
from trainyard.tracing import span

Answer = Callable[[Request], Awaitable[Response]]
Authenticate = Callable[[Request], Caller]
TRACE_HEADER = "x-trace-id"
"""The header with the correlation id of an answer."""
EVENTS_TYPE = "text/event-stream"
LEAVING_S = 0.2
"""A client is not watched while it waits less than this."""
CLIENT_CLOSED_REQUEST = 499
"""Status of an answer without a reader (nginx's): only a log and the metrics have it."""
MAX_WORKING = 32
"""Operations that run at a time; further ones wait."""

PLAIN_PATHS = frozenset(path for path in (find_route(name)[1] for name in OPERATIONS) if "{" not in path)
"""Paths that are not read as an id, whatever the method."""


@dataclass(frozen=True)
class ApiParts:
    """Dependencies of the routes."""

    settings: Settings
    authenticate: Authenticate
    replays: Replays
    confined: ConfinedCalls | None = None
    threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, MAX_WORKING))
    """Of operations alone: pages and `/health` answer when all of them are busy."""


def add_operations(app: FastAPI, service: ApiParts) -> None:
    """Add every operation; paths without parameters come first, so that `/chains/templates` is not an id."""
    for name in sorted(OPERATIONS, key=lambda operation: path_order(find_route(operation)[1])):
        method, path = find_route(name)
        # Starlette's route: FastAPI's own resolves dependencies of a signature, a millisecond of each request.
        route = Route(path, endpoint(name, OPERATIONS[name], service), methods=[method], name=name)
        route.methods = {method}
        app.router.routes.append(route)


def answer_refusal(request: Request, error: TrainyardError) -> Response:
    """Return the problem document of what an operation raises."""
    return answer_problem(error, read_trace_id(request), error.fields if isinstance(error, InvalidFields) else ())


def path_order(path: str) -> tuple[bool, ...]:
    return tuple(part.startswith("{") for part in path.split("/"))


def operation_id(name: str) -> str:
    """`jobs create` is `jobs_create`."""
    return name.replace(" ", "_").replace("-", "_")


def endpoint(name: str, operation: Operation, service: ApiParts) -> Answer:
    """Return what answers a route."""

    in_braces = "{" in find_route(name)[1]

    async def answer(request: Request) -> Response:
        if in_braces and request.scope["path"] in PLAIN_PATHS:  # another method of a path such as /chains/templates
            raise HTTPException(405)
        trace = read_trace_id(request)
        with span(name, request.scope[TRACEPARENT]):
            caller = service.authenticate(request)
            try:
                async with AsyncExitStack() as stack:
                    answered = await answer_within(request, trace, caller, stack)
            except CallerLeft:
                answered = Response(status_code=CLIENT_CLOSED_REQUEST)
            except TrainyardError as error:
                raise hide_error(caller, error, service.settings) from error
            if is_stranger(caller) and answered.media_type == "application/json" and hasattr(answered, "body"):
                answered.body = hide_places_in_json(bytes(answered.body), service.settings)
                answered.headers["content-length"] = str(len(answered.body))
        answered.raw_headers.append((TRACE_HEADER.encode(), trace.encode()))
        return answered

    async def answer_within(request: Request, trace: str, caller: Caller, stack: AsyncExitStack) -> Response:
        later = list[Callable[[], None]]()
        context = Context(
            service.settings,
            say=ignore,
            caller=caller,
            surface="rest",
            trace=trace,
            idempotency_key=read_key(request),
            afterwards=later.append if operation.keeps_replies else call_now,
            request_bytes=body_length(request),
            confined=service.confined,
        )
        model = operation.request
        refuse_early(name, model, context)
        require_addressed(request, context)
        limits = BATCHES if operation.keeps_replies else USUAL
        folder = service.settings.services
        if takes_file(operation, request):
            most = service.settings.upload_mb << 20
            upload = await read_upload(model, request, stack, caller=caller.identity, folder=folder, most_bytes=most)
        else:
            upload = await read_request(
                model, request, operation.body, caller=caller.identity, folder=folder, limits=limits
            )
        if operation.stream and EVENTS_TYPE in request.headers.get("accept", ""):
            require_allowed(name, upload, context)
            return await stream(load_object(f"trainyard.{operation.stream}"), upload, context, request)
        work = partial(execute_operation, name, upload, context)
        is_kept = operation.keeps_replies or takes_file(operation, request)  # the same file twice is one
        if context.idempotency_key and request.method != "GET" and not is_kept:
            key = context.idempotency_key
            once = partial(service.replays.once, caller, name, upload, key, partial(run_to_json, work))
            return respond_bytes(
                await run_while_connected(once, request, context.departure, service.threads), operation.status
            )
        result = await run_while_connected(work, request, context.departure, service.threads)
        try:
            response = respond(result, operation.status, request)
        except BaseException:
            await finish(later)
            raise
        response.background = BackgroundTask(finish, later) if later else None
        return response

    setattr(answer, OPERATION, name)  # for the metrics
    return answer


def takes_file(operation: Operation, request: Request) -> bool:
    """Return whether the body of a request is a file, not JSON."""
    return operation.takes_file and media_type(request) == FILE_TYPE


def body_length(request: Request) -> int | None:
    """Return the length of a request's body as its header says it; None for a body in chunks."""
    if request.method == "GET":
        return 0
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def require_addressed(request: Request, context: Context) -> None:
    """Refuse a call of a session that is not the caller's before a long body is read. Raises `NotFound`."""
    session, length = request.path_params.get("session"), body_length(request)
    is_short = length is not None and length <= INLINE_BYTES
    if session is not None and request.method != "GET" and not is_short:
        from trainyard.app.sessions.calls import require_session  # only calls of sessions need it

        require_session(context, session)


async def run_while_connected(
    work: Callable[[], Any], request: Request, departure: Departure, threads: CapacityLimiter
) -> Any:
    """Return what `work` returns on a thread. When the client leaves, what has not begun does not, and `departure` is
    noted.

    Work that changes something finishes (`invocation.ends_with_caller`). Raises `CallerLeft`, and what `work` raises.
    """

    def begin() -> Any:
        departure.require_caller()
        return work()

    running = asyncio.ensure_future(anyio.to_thread.run_sync(begin, limiter=threads))
    done, _ = await asyncio.wait((running,), timeout=LEAVING_S)  # most have ended by then
    if done:
        return running.result()
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            departure.note()
        return await running
    finally:
        leaving.cancel()


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def finish(later: Iterable[Callable[[], None]]) -> None:
    """Do what an operation has left until the caller has its answer."""
    for work in later:
        await anyio.to_thread.run_sync(work)


def run_to_json(work: Callable[[], BaseModel]) -> bytes:
    return work().model_dump_json().encode()


def respond_bytes(body: bytes, status: int) -> Response:
    return Response(
        body, status_code=status, media_type="application/json", headers=dict(read_links(orjson.loads(body)))
    )


def respond(result: BaseModel, status: int, request: Request) -> Response:
    """Return the answer with a response: bytes of a file, nothing if the client has it already (ETag), or JSON."""
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
    """Return whether responses of a class have an etag: pydantic takes long to say that an object has none."""
    return "etag" in kind.model_fields or hasattr(kind, "etag")


def read_links(fields: Mapping[str, object]) -> Mapping[str, str]:
    etag = fields.get("etag")
    return {"etag": f'"{etag}"'} if isinstance(etag, str) and etag else {}


async def stream(follow: Any, fields: Any, context: Context, request: Request) -> Response:
    """Return the answer as server-sent events (WHATWG HTML, 9.2); `Last-Event-ID` continues one that was interrupted.

    The first event is awaited: what cannot be followed is refused with a problem document, like any other request.
    """
    events = follow(fields, context, request.headers.get("last-event-id"))
    first = await anext(events)

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(events):
            yield first.encode()
            async for event in events:
                await anyio.lowlevel.checkpoint()  # a client that is gone takes whatever it is sent without waiting
                yield event.encode()

    return StreamingResponse(lines(), media_type=EVENTS_TYPE, headers={"cache-control": "no-store"})
