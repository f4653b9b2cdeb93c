"""The application of a data worker: one table of routes, callers by their tokens, and the Hub's shape of errors.

Paths are matched as they were sent, because a revision may contain an escaped slash (`refs%2Fconvert%2Fparquet`). A
request that changes something has lines in the audit log, as an operation of the REST API has.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio.to_thread
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard.app.access.audit import AuditEntry
from trainyard.app.access.guard import JSON_TYPE, Guard, Refusal, RefusalBody
from trainyard.app.access.limits import MOST_OF_CALLER, MOST_OF_CALLERS, CallerRates, OpenRequests
from trainyard.app.context import Caller, Context
from trainyard.callbacks import ignore
from trainyard.errors import Denied, InvalidInput, TrainyardError
from trainyard.serve.failures import AnswerFailures
from trainyard.stores.repositories.repository import Repositories
from trainyard.stores.repositories.storage import Staging
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.access.entrance import require_lengths
from trainyard.surfaces.bodies import read_trace_id
from trainyard.surfaces.hub.reading import ReadingRoutes
from trainyard.surfaces.hub.replies import HubRefusal, reply_error, reply_json
from trainyard.surfaces.hub.requests import FORM, Call, decode, read_body, split_path
from trainyard.surfaces.hub.uploads import LFS_TYPE, UploadRoutes
from trainyard.surfaces.hub.writing import WritingRoutes
from trainyard.surfaces.problems import describe_bug

LOG = logging.getLogger("trainyard.hub")
REPO, WORD, REST, KIND = r"([^/]+/[^/]+)", r"([^/]+)", r"(.+)", r"(models|datasets|spaces)"
API = rf"/api/{KIND}/{REPO}"
TYPES = (JSON_TYPE, LFS_TYPE, "application/x-ndjson", FORM, "application/octet-stream", "")
"""Of bodies. A file is sent without a type. No cookie counts here, so that no page of a browser is a caller."""
SURFACE, REQUEST_ID = "hub", "x-request-id"


class HubRoute(NamedTuple):
    """A route: `name` is its word in the audit log, empty for one that changes nothing."""

    method: str
    pattern: re.Pattern[str]
    handler: Callable[..., Any]
    name: str = ""


class CallFields(BaseModel):
    """Entry of a request in the audit log."""

    name: str
    """The repository, with the revision where the path has one."""


class HubEntry(AuditEntry):
    """The lines about one request of the wire."""

    @property
    def is_admins(self) -> bool:
        return False


class HubApp:
    """The ASGI application."""

    def __init__(self, authenticator: Authenticator, repositories: Repositories, staging: Staging) -> None:
        self.authenticator, self.settings = authenticator, authenticator.settings
        self.rates = CallerRates(self.settings.api_requests_per_s)
        self.open = OpenRequests(MOST_OF_CALLER, MOST_OF_CALLERS)
        reading = ReadingRoutes(repositories, self.settings.tenant)
        writing = WritingRoutes(repositories, staging, self.settings.tenant)
        self.uploads = UploadRoutes(repositories, staging)
        self.routes = build_routes(reading, writing, self.uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self.answer(request)
        except TrainyardError as error:
            response = reply_error(error)
        await identify(response, request)(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """Return the answer. Raises what refuses the request."""
        require_lengths(request.scope, request.headers)
        path = split_path(request)
        if path == "/health":
            return reply_json({"status": "ok"})
        address = request.client.host if request.client else ""
        upload = await self.answer_link(request, path, address)
        if upload is not None:
            return upload
        caller = await anyio.to_thread.run_sync(self.authenticate, request, address)
        self.rates.take(caller.name)
        method = "GET" if request.method == "HEAD" else request.method
        for route in self.routes:
            if route.method == method and (match := route.pattern.fullmatch(path)) is not None:
                words = tuple(word for word in match.groups() if word is not None)
                with self.open.reserve_slot(caller.name):
                    return await self.work(route, Call(request, caller, words))
        if (problem := xet_refusal(path)) is not None:
            raise problem
        raise HubRefusal("", f"There is nothing at {path[:200]}.", code="E-NOT-FOUND")

    def authenticate(self, request: Request, address: str) -> Caller:
        """Return the caller of the token; a browser's cookie is none. Raises `Denied` (`E-AUTH`), `TooMany`."""
        header = request.headers.get("authorization")
        try:
            if header is None and not self.authenticator.everybody:
                raise Denied("There is no token.", do="Set HF_TOKEN to a token of this data worker.", code="E-AUTH")
            headers = {"authorization": header} if header is not None else {}
            return self.authenticator.authenticate(headers, request.method, address)
        except Denied:
            self.rates.take(f"address {address}")
            raise

    async def answer_link(self, request: Request, path: str, address: str) -> Response | None:
        """Answer a signed link of an upload; None for another path."""
        routes = self.uploads
        handlers: dict[tuple[str, str], Callable[[Request, tuple[str, ...]], Awaitable[Response]]] = {
            ("PUT", "upload"): routes.take_whole, ("PUT", "part"): routes.take_part,
            ("POST", "complete"): routes.complete, ("POST", "verify"): routes.verify,
        }  # fmt: skip
        _, first, *words = path.split("/", 4)
        handler = handlers.get((request.method, words[0])) if first == "lfs" and words else None
        if handler is None:
            return None
        self.rates.take(f"address {address}")
        if len(words) != (3 if words[0] == "part" else 2) or (words[0] == "part" and not words[2].isdecimal()):
            raise InvalidInput("The link of the upload is incomplete.", code="E-PARAMETER")
        return await handler(request, tuple(words[1:]))

    async def work(self, route: HubRoute, call: Call) -> Response:
        """Return the answer of a route, between the lines of the audit log where it changes something."""
        entry = self.entry(route, call) if route.name else None
        if entry is not None:
            await anyio.to_thread.run_sync(entry.begin)
        try:
            response = await self.call_handler(route, call)
        except BaseException as error:
            if entry is not None:
                entry.end(error=error)
            raise
        if entry is not None:
            await anyio.to_thread.run_sync(entry.end)
        return response

    async def call_handler(self, route: HubRoute, call: Call) -> Response:
        handler = route.handler
        if inspect.iscoroutinefunction(handler):  # its body goes to the disk
            response: Response = await handler(call)
            return response
        body = await read_body(call.request)
        return await anyio.to_thread.run_sync(handler, Call(call.request, call.caller, call.words, body))

    def entry(self, route: HubRoute, call: Call) -> HubEntry:
        context = Context(
            self.settings, say=ignore, caller=call.caller, surface=SURFACE, trace=read_trace_id(call.request)
        )
        name = " ".join(decode(word) for word in call.words)
        return HubEntry(f"{SURFACE} {route.name}", CallFields(name=name[:512]), context)


def build_routes(reading: ReadingRoutes, writing: WritingRoutes, uploads: UploadRoutes) -> list[HubRoute]:
    """Return every route that needs a token."""
    rows = (
        ("GET", r"/api/whoami-v2", reading.whoami, ""),
        ("GET", rf"/api/{KIND}", reading.list_repositories, ""),
        ("GET", rf"{API}", reading.inform, ""),
        ("GET", rf"{API}/revision/{WORD}", reading.inform, ""),
        ("GET", rf"{API}/auth-check", reading.check_access, ""),
        ("GET", rf"{API}/refs", reading.list_refs, ""),
        ("GET", rf"{API}/commits/{WORD}", reading.list_commits, ""),
        ("GET", rf"{API}/tree/{WORD}(?:/{REST})?", reading.list_tree, ""),
        ("POST", rf"{API}/paths-info/{WORD}", reading.list_paths, ""),
        ("GET", rf"/datasets/{REPO}/resolve/{WORD}/{REST}", reading.send_dataset_file, ""),
        ("GET", rf"/{REPO}/resolve/{WORD}/{REST}", reading.send_file, ""),
        ("POST", r"/api/validate-yaml", writing.validate_card, ""),
        ("POST", rf"{API}/preupload/{WORD}", writing.choose_modes, ""),
        ("POST", r"/api/repos/create", writing.create_repository, "create"),
        ("DELETE", r"/api/repos/delete", writing.delete_repository, "delete"),
        ("POST", rf"{API}/branch/{WORD}", writing.create_branch, "branch"),
        ("DELETE", rf"{API}/branch/{WORD}", writing.delete_branch, "delete-branch"),
        ("POST", rf"{API}/super-squash/{WORD}", writing.squash, "squash"),
        ("POST", rf"{API}/tag/{WORD}", writing.create_tag, "tag"),
        ("DELETE", rf"{API}/tag/{WORD}", writing.delete_tag, "delete-tag"),
        ("POST", rf"/datasets/{REPO}\.git/info/lfs/objects/batch", uploads.offer_dataset, "upload"),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", uploads.offer, "upload"),
        ("POST", rf"{API}/commit/{WORD}", writing.commit, "commit"),
    )
    return [HubRoute(method, re.compile(pattern), handler, name) for method, pattern, handler, name in rows]


def xet_refusal(path: str) -> InvalidInput | None:
    """Return the answer to a client that wants to upload by Xet; None for another path."""
    if not re.search(r"/xet-(?:write|read)-token/", path):
        return None
    return InvalidInput(
        "A data worker does not speak Xet.", do="Set HF_HUB_DISABLE_XET=1 in the program that uploads.",
        code="E-PARAMETER",
    )  # fmt: skip


def identify(response: Response, request: Request) -> Response:
    """Return the response with the id of its request, which clients of the Hub print with an error."""
    response.headers[REQUEST_ID] = read_trace_id(request)
    return response


def answer_bug(request: Request, error: Exception) -> Response:
    return identify(reply_error(describe_bug(error, read_trace_id(request))), request)


def word_refusal(refusal: Refusal) -> RefusalBody:
    """Return a refusal of the guard in the Hub's shape."""
    response = reply_error(InvalidInput(refusal.text, code=refusal.code))
    return RefusalBody(bytes(response.body), JSON_TYPE)


def guard_app(app: ASGIApp, origins: tuple[str, ...], names: tuple[str, ...]) -> Guard:
    """Return the application behind the checks of Host, Origin and types."""
    answered = AnswerFailures(app, answer_bug, LOG, read_trace_id)
    return Guard(answered, origins, word_refusal, names=names, types=TYPES)
