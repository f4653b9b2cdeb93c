"""The application of the wire: a route for each path of OpenAI that is served, and a refusal by name for the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
import orjson
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.app.context import Caller, ConfinedCalls, Context
from trainyard.app.tenant_view import hide_places, hide_places_in_json, is_stranger
from trainyard.callbacks import call_now, ignore
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.failures import AnswerFailures
from trainyard.settings import Settings
from trainyard.surfaces.bodies import (
    MAX_BODY_BYTES,
    TRACEPARENT,
    USUAL,
    media_type,
    read_object,
    read_trace_id,
    require_structure,
)
from trainyard.surfaces.openai import completions, events, files, jobs, models, uploads
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.errors import WireError, translate_error, unknown_parameter, unknown_url
from trainyard.surfaces.openai.prefix import FORM_TYPE, REQUEST_ID
from trainyard.surfaces.problems import describe_bug
from trainyard.surfaces.spool import receive_body
from trainyard.tracing import span

LOG = logging.getLogger("trainyard.openai")
CALLER = "trainyard.caller"
"""Key of a request's scope."""
MAX_CALLS = 32
"""Requests that are worked on at a time; further ones wait."""
CLIENT_CLOSED_REQUEST = 499
"""Status of an answer that nobody reads (nginx's)."""
LOWEST_ERROR = 400
MAX_FIELDS = 8
FILE_FIELDS = {"/files": "file", "/uploads/{upload_id}/parts": "data"}
"""The field of a form that is its file."""
Answer = Callable[[WireCall], JsonObject | Response]
Authenticate = Callable[[Request], Caller]
JOB = "/fine_tuning/jobs/{fine_tuning_job_id}"


@dataclass(frozen=True)
class WireRoute:
    """A path of OpenAI's API."""

    method: str
    path: str
    answer: Answer
    takes_form: bool = False
    passes_on: str = ""
    """Path of the model server that answers."""


def refuse_embeddings(_: WireCall) -> JsonObject:
    text = "Embeddings are not supported here: the models that are trained and served write text."
    raise WireError(404, text, code="unsupported_endpoint")


ROUTES = (
    WireRoute("POST", "/files", files.create_file, takes_form=True),
    WireRoute("GET", "/files", files.list_files),
    WireRoute("GET", "/files/{file_id}", files.show_file),
    WireRoute("DELETE", "/files/{file_id}", files.delete_file),
    WireRoute("GET", "/files/{file_id}/content", files.read_file),
    WireRoute("POST", "/uploads", uploads.create_upload),
    WireRoute("POST", "/uploads/{upload_id}/parts", uploads.add_part, takes_form=True),
    WireRoute("POST", "/uploads/{upload_id}/complete", uploads.complete_upload),
    WireRoute("POST", "/uploads/{upload_id}/cancel", uploads.cancel_upload),
    WireRoute("POST", "/fine_tuning/jobs", jobs.create_job),
    WireRoute("GET", "/fine_tuning/jobs", jobs.list_jobs),
    WireRoute("GET", JOB, jobs.show_job),
    WireRoute("POST", f"{JOB}/cancel", jobs.cancel_job),
    WireRoute("POST", f"{JOB}/pause", jobs.pause_job),
    WireRoute("POST", f"{JOB}/resume", jobs.resume_job),
    WireRoute("GET", f"{JOB}/events", events.list_events),
    WireRoute("GET", f"{JOB}/checkpoints", events.list_checkpoints),
    WireRoute("GET", "/models", models.list_models),
    WireRoute("GET", "/models/{model:path}", models.show_model),
    WireRoute("DELETE", "/models/{model:path}", models.delete_model),
    WireRoute("POST", "/chat/completions", refuse_embeddings, passes_on="/v1/chat/completions"),
    WireRoute("POST", "/completions", refuse_embeddings, passes_on="/v1/completions"),
    WireRoute("POST", "/embeddings", refuse_embeddings),
)
"""Every path that is answered; `tools/openai_conformance.py` compares them with OpenAI's document."""


@dataclass(frozen=True)
class WireParts:
    """Dependencies of the routes."""

    settings: Settings
    authenticate: Authenticate
    confined: ConfinedCalls | None
    threads: CapacityLimiter


def build_wire(settings: Settings, authenticate: Authenticate, confined: ConfinedCalls | None = None) -> Starlette:
    """Return the application below the prefix. `authenticate` returns the caller of a request, or raises `Denied`."""
    parts = WireParts(settings, authenticate, confined, CapacityLimiter(MAX_CALLS))

    async def answer_unknown(request: Request, error: Exception) -> Response:
        path = request.url.path
        if getattr(error, "status_code", 404) == 405:
            text = f"Not allowed to {request.method} on {path[:200]}."
            return identify(WireError(405, text, code="method_not_supported").response(), request)
        return identify(unknown_url(request.method, path).response(), request)

    routes = [Route(row.path, endpoint(row, parts), methods=[row.method]) for row in ROUTES]
    failures = Middleware(AnswerFailures, answer=answer_bug, log=LOG, trace=read_trace_id)
    app = Starlette(routes=routes, middleware=[failures], exception_handlers={HTTPException: answer_unknown})
    app.router.redirect_slashes = False
    return app


def answer_bug(request: Request, error: Exception) -> Response:
    return identify(translate_error(describe_bug(error, read_trace_id(request))).response(), request)


def endpoint(row: WireRoute, parts: WireParts) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a route."""

    async def answer(request: Request) -> Response:
        try:
            caller = parts.authenticate(request)
            trace = read_trace_id(request)
            with span(f"openai {row.path}", request.scope[TRACEPARENT]):
                context = Context(
                    parts.settings, say=ignore, caller=caller, surface="openai", trace=trace, afterwards=call_now,
                    confined=parts.confined,
                )  # fmt: skip
                async with AsyncExitStack() as stack:
                    response = await answer_within(request, context, stack)
        except WireError as error:
            response = error.response()
        except TrainyardError as error:
            response = translate_error(error).response()
        return identify(hide_machine(response, request, parts.settings), request)

    async def answer_within(request: Request, context: Context, stack: AsyncExitStack) -> Response:
        query = dict(request.query_params.multi_items())
        call = WireCall(context, dict(request.path_params), query)
        if row.takes_form:
            call = await read_form(request, call, row, stack)
        elif row.method == "POST":
            call = WireCall(context, call.path, query, await read_body(request, context))
        if row.passes_on:
            model = await anyio.to_thread.run_sync(completions.find_model, call, row.path, limiter=parts.threads)
            return await answer_unless_left(completions.pass_on(model, row.passes_on, call.body), request)
        result = await anyio.to_thread.run_sync(partial(row.answer, call), limiter=parts.threads)
        return result if isinstance(result, Response) else Response(orjson.dumps(result), media_type="application/json")

    return answer


async def answer_unless_left(answer: Coroutine[Any, Any, Response], request: Request) -> Response:
    """Return an answer; when the client leaves before it begins, what makes it is cancelled."""
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, context: Context) -> Mapping[str, object]:
    """Return the JSON object of a body; an empty body is an empty object. Raises `InvalidInput`, `LimitExceeded`."""
    async with receive_body(request, MAX_BODY_BYTES, context.caller.identity, context.settings.services) as body:
        data = await anyio.to_thread.run_sync(body.read)
        if not data.strip():
            return {}
        await anyio.to_thread.run_sync(require_structure, data, USUAL)
        return await anyio.to_thread.run_sync(read_object, data, media_type(request))


async def read_form(request: Request, call: WireCall, row: WireRoute, stack: AsyncExitStack) -> WireCall:
    """Return the call with the fields and the file of a form. Raises `WireError` 400."""
    if media_type(request) != FORM_TYPE:
        raise WireError(400, f"Send the file as {FORM_TYPE}.", code="invalid_content_type")
    try:
        form = await stack.enter_async_context(request.form(max_files=1, max_fields=MAX_FIELDS))
    except (MultiPartException, HTTPException, ClientDisconnect, ValueError) as error:
        text = getattr(error, "detail", None) or getattr(error, "message", None) or "it could not be read"
        raise WireError(400, f"The form is not valid: {text}", code="invalid_form") from error
    fields: JsonObject = {}
    files_of_form = dict[str, UploadFile]()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files_of_form[name] = value
            continue
        outer, bracket, inner = name.partition("[")
        if name in fields or (bracket and not isinstance(fields.setdefault(outer, {}), dict)):
            raise WireError(400, f"The parameter '{name[:100]}' occurs twice.", param=name[:100])
        if bracket:
            fields[outer][inner.removesuffix("]")] = value
        else:
            fields[name] = value
    unexpected = sorted(files_of_form.keys() - {FILE_FIELDS[row.path]})
    if unexpected:
        raise unknown_parameter(unexpected[0][:100])
    upload = next(iter(files_of_form.values()), None)
    source = upload.file if upload is not None else None
    return WireCall(call.context, call.path, call.query, fields, source, (upload.filename or "") if upload else "")


def hide_machine(response: Response, request: Request, settings: Settings) -> Response:
    """Return a JSON response without the folders of this machine, for a caller who may know its tenant's part only."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None and is_stranger(caller) and response.media_type == "application/json":
        body = bytes(response.body)
        is_error = response.status_code >= LOWEST_ERROR
        response.body = (
            hide_places(body.decode(), settings).encode() if is_error else hide_places_in_json(body, settings)
        )
        response.headers["content-length"] = str(len(response.body))
    return response


def identify(response: Response, request: Request) -> Response:
    """Return the response with the id of its request."""
    response.headers[REQUEST_ID] = f"req_{read_trace_id(request)}"
    return response
