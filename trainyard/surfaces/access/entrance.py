"""Entrance of every request to the service: checked, counted and with its caller, before the application sees it.

    client -> Guard (Host, Origin, types) -> Entrance (lengths, caller, rate, place) -> application

Both are plain ASGI: an answer that is a stream passes through as it is made. A request without a caller gets 401 for
every path but the few of `OPEN`, so that the existing paths stay unknown. Its body has to be short, arrive within five
seconds, and gives way to newer ones when there are many: no login, page or other caller lacks its place.

A browser logs in by a token once, then has a cookie that no script can read:

    POST /api/v1/login {"token": …}   a cookie for half a day, and its rights: {caller, scope, tenant, csrf}
    GET  /api/v1/login                the caller of the cookie
    POST /api/v1/logout               the login ends here and in the browser

Requests that change something need the header X-CSRF-Token with `csrf`, besides the cookie.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.app.access.audit import record_event
from trainyard.app.access.guard import JSON_TYPE, Guard, Refusal, RefusalBody
from trainyard.app.access.limits import (
    MOST_OF_ADDRESS,
    MOST_OF_ADDRESSES,
    MOST_OF_CALLER,
    MOST_OF_CALLERS,
    CallerRates,
    OpenRequests,
    find_network,
)
from trainyard.app.context import Caller
from trainyard.errors import Denied, InvalidInput, LimitExceeded, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.failures import AnswerFailures
from trainyard.stores.secret_files import CODE_PREFIX, LOGIN_S, forgery_token
from trainyard.surfaces.access.authentication import Authenticator
from trainyard.surfaces.bodies import (
    FILE_TYPE,
    MAX_BODY_BYTES,
    MAX_TENSORS_BYTES,
    MAX_TINKER_BYTES,
    PROTOBUF_TYPE,
    TENSORS_TYPE,
    read_request,
    read_trace_id,
)
from trainyard.surfaces.openai.prefix import takes_files
from trainyard.surfaces.problems import MEDIA_TYPE, answer_problem, describe_bug

MAX_LOGIN_BYTES = 4 << 10
BODY_S = 5.0
MOST = 64


class LateBody(InvalidInput):
    """A body that did not arrive in time, or gave way to others."""


class StrangerBodies:
    """The bodies that are arriving; the oldest gives way when there are more than `most`."""

    def __init__(self, most: int = MOST, seconds: float = BODY_S) -> None:
        self.most, self.seconds = most, seconds
        self.arriving = OrderedDict[int, asyncio.Timeout]()
        self.number = 0

    async def receive(self, receive: Receive) -> bytes:
        """Return a whole body. Raises `LateBody` (`E-JSON`), and `LimitExceeded` (`E-BODY-LENGTH`) for a long one."""
        self.number = number = self.number + 1
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                self.arriving[number] = deadline
                self.make_room()
                return await read_short(receive)
        except TimeoutError as error:
            raise LateBody(
                f"The body did not arrive within {self.seconds:g} s.", do="Send it together with the head.",
                code="E-JSON",
            ) from error  # fmt: skip
        finally:
            self.arriving.pop(number, None)

    def make_room(self) -> None:
        while len(self.arriving) > self.most:
            _, oldest = self.arriving.popitem(last=False)
            oldest.reschedule(asyncio.get_running_loop().time())


async def read_short(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidInput("The connection ended before the body did.", code="E-JSON")
        body += message.get("body", b"")
        if len(body) > MAX_LOGIN_BYTES:
            raise LimitExceeded(
                f"The body is longer than {MAX_LOGIN_BYTES:,} bytes.", do="Send the token alone.", code="E-BODY-LENGTH"
            )
        if not message.get("more_body"):
            return bytes(body)


def whole_body(body: bytes, receive: Receive) -> Receive:
    """Receive a body that has arrived, then what comes after it."""
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return rest.pop() if rest else await receive()

    return receiving


LOG = logging.getLogger("trainyard.rest")
LOGIN = "/api/v1/login"
SESSIONS = "/api/v1/sessions/"
UPLOADS = "/api/v1/data/uploads/"
TINKER, LINKS = "/tinker/", "/tinker/files/"
"""The Tinker SDK's wire, and its links to files, whose codes are random."""
PAGES = "/dashboard"
OPEN = frozenset({("GET", "/health"), ("HEAD", "/health"), ("POST", LOGIN)})
"""What needs no caller: whether the service lives, and how to become one."""
CALLER = "trainyard.caller"
"""Key of a request's scope."""
MAX_TARGET_BYTES, MAX_HEADER_BYTES = 8 << 10, 32 << 10
"""Of path and query, and of all headers."""
MAX_FORM_BYTES = 1 << 20
"""Of a form around its file."""
SINGLE_HEADERS = (b"authorization", b"x-api-key", b"content-type", b"content-length", b"idempotency-key")
API_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Of every answer: it is data, of which nothing runs, which nobody shows in a frame and nothing keeps."""
PAGE_POLICY = (
    b"default-src 'self'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    b"form-action 'self'; "
    b"require-trusted-types-for 'script'"
)
"""Of the pages of the dashboard: their own scripts and styles, no inline ones, and no other origin's. Images may be in
their address: nothing in an image runs."""


class Entrance:
    """An ASGI app that finds the caller of a request, or answers in place of the application."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, buckets: CallerRates) -> None:
        self.app, self.authenticator, self.buckets = app, authenticator, buckets
        self.callers = OpenRequests(MOST_OF_CALLER, MOST_OF_CALLERS)
        self.addresses = OpenRequests(MOST_OF_ADDRESS, MOST_OF_ADDRESSES)
        self.bodies = StrangerBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": 1008, "reason": "E-REQUEST-REFUSED"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if is_page(scope["path"]):
            send = add_policy(send, PAGE_POLICY)
        with ExitStack() as exit_stack:
            try:
                limit = self.admit(scope)
                if CALLER not in scope and scope["method"] == "POST":  # no place is taken by a body that does not come
                    receive = whole_body(await self.bodies.receive(receive), receive)
                exit_stack.enter_context(self.reserve_slot(scope))
            except LateBody as error:
                return await build_refusal(error, scope, 408)(scope, receive, send)
            except TrainyardError as error:
                return await build_refusal(error, scope)(scope, receive, send)
            await self.app(scope, cap_body(receive, limit), send)

    def reserve_slot(self, scope: Scope) -> AbstractContextManager[None]:
        """Return where an admitted request is counted until it is answered: with its caller, or with its address."""
        caller: Caller | None = scope.get(CALLER)
        if caller is not None:
            return self.callers.reserve_slot(caller.name)
        return self.addresses.reserve_slot(find_network((scope.get("client") or ("",))[0]))

    def admit(self, scope: Scope) -> int:
        """Put the caller into the scope, and return how long the body may be. Raises what refuses the request."""
        headers = Headers(scope=scope)
        require_lengths(scope, headers)
        limit = longest_body(scope, headers, self.authenticator.settings.upload_mb << 20)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise long_body_error(limit)
        address = (scope.get("client") or ("",))[0]
        reads_page = scope["method"] in ("GET", "HEAD") and is_page(scope["path"])
        reads_link = scope["method"] == "GET" and scope["path"].startswith(LINKS)
        if reads_page or reads_link or (scope["method"], scope["path"]) in OPEN:
            self.buckets.take(f"address {address}")
            return limit
        try:
            caller = self.authenticator.authenticate(headers, scope["method"], address)
        except Denied:
            self.buckets.take(f"address {address}")
            raise
        self.buckets.take(caller.name)
        scope[CALLER] = caller
        return limit


def is_page(path: str) -> bool:
    """Return whether a path is of the dashboard, whose files contain nothing of this home."""
    return path == PAGES or path.startswith(f"{PAGES}/")


def caller_of_request(request: Request) -> Caller:
    """Return the caller that the entrance found. Raises `Denied` (`E-AUTH`) where it found none."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise Denied("There is no token.", code="E-AUTH")
    return caller


def require_lengths(scope: Scope, headers: Headers) -> None:
    """Raises `LimitExceeded` (`E-LIMIT`) for a long address or long headers, `InvalidInput` for a repeated header."""
    target = len(scope.get("raw_path") or scope["path"].encode()) + len(scope.get("query_string", b""))
    if target > MAX_TARGET_BYTES:
        raise LimitExceeded(f"The address is longer than {MAX_TARGET_BYTES:,} bytes.", do="Send values in a body.")
    if sum(len(key) + len(value) for key, value in headers.raw) > MAX_HEADER_BYTES:
        raise LimitExceeded(f"The headers are longer than {MAX_HEADER_BYTES:,} bytes.", do="Send fewer.")
    names = [key for key, _ in headers.raw]
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            raise InvalidInput(f"The header {name.decode()} occurs twice.", do="Send it once.", code="E-PARAMETER")


def longest_body(scope: Scope, headers: Headers, upload_bytes: int) -> int:
    """Return how long the body of a request may be, before its route says so: only sessions take tensors, uploads
    files.
    """
    if (scope["method"], scope["path"]) == ("POST", LOGIN):
        return MAX_LOGIN_BYTES
    if scope["path"].startswith(UPLOADS) and media_type(headers) == FILE_TYPE:
        return upload_bytes
    if takes_files(scope["path"]):
        return upload_bytes + MAX_FORM_BYTES
    if scope["path"].startswith(TINKER):
        return MAX_TINKER_BYTES
    is_tensors = media_type(headers) == TENSORS_TYPE and scope["path"].startswith(SESSIONS)
    return MAX_TENSORS_BYTES if is_tensors else MAX_BODY_BYTES


def media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def long_body_error(limit: int) -> LimitExceeded:
    return LimitExceeded(f"The body is longer than {limit:,} bytes.", do="Send less at a time.", code="E-BODY-LENGTH")


def cap_body(receive: Receive, limit: int) -> Receive:
    """Stop reading a body that is longer than it may be, also one that does not say its length."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                raise long_body_error(limit)
        return message

    return receiving


def add_policy(send: Send, policy: bytes) -> Send:
    """Add the policy of pages. A browser asks each time whether a file has changed: the names of the files stay."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            caching = (b"cache-control", b"no-cache")
            rows = [*message.get("headers", ()), (b"content-security-policy", policy), caching]
            message = {**message, "headers": rows}
        await send(message)

    return sending


def build_refusal(error: TrainyardError, scope: Scope, status: int = 0) -> Response:
    """Return the problem document in place of the application's answer."""
    return answer_problem(error, read_trace_id(Request(scope)), status=status)


def answer_bug(request: Request, error: Exception) -> Response:
    """Return the problem document about an exception of the entrance itself, such as a file of tokens on a bad disk."""
    trace = read_trace_id(request)
    return answer_problem(describe_bug(error, trace), trace)


def build_problem_body(refusal: Refusal) -> RefusalBody:
    """Return a refusal of the guard as the service words its own."""
    answer = answer_problem(InvalidInput(refusal.text, code=refusal.code), status=refusal.status)
    return RefusalBody(bytes(answer.body), MEDIA_TYPE)


def protect(
    app: ASGIApp, authenticator: Authenticator, *, names: Iterable[str] = (), origins: Iterable[str] = ()
) -> Guard:
    """Return the application behind guard and entrance. `names` are what clients call this server, besides loopback."""
    settings = authenticator.settings
    entrance = Entrance(app, authenticator, CallerRates(settings.api_requests_per_s))
    return Guard(
        AnswerFailures(entrance, answer_bug, LOG, read_trace_id), (*settings.api_origins, *origins), build_problem_body,
        names=(*settings.api_hosts, *names), types=(JSON_TYPE, TENSORS_TYPE, FILE_TYPE, PROTOBUF_TYPE),
        headers=API_HEADERS,
        takes_forms=takes_files,
    )  # fmt: skip


LOGOUT = "/api/v1/logout"


class LoginInput(BaseModel):
    """Login of a browser."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(min_length=1, max_length=1024)
    """A token, the home's string, or the code of a link of `trainyard dashboard`, which works once."""


def add_logins(app: Starlette, authenticator: Authenticator) -> None:
    """Add the three routes."""

    def facts(caller: Caller, cookie: str) -> JsonObject:
        csrf = forgery_token(cookie) if cookie else ""
        return {"caller": caller.name, "scope": caller.scope.value, "tenant": caller.tenant, "csrf": csrf}

    async def log_in(request: Request) -> Response:
        login = await read_request(LoginInput, request)
        return await anyio.to_thread.run_sync(begin, request, login.token)

    def begin(request: Request, token: str) -> Response:
        address = request.client.host if request.client else ""
        try:
            if token.startswith(CODE_PREFIX):
                caller, token_id = authenticator.caller_of_code(token)
            else:
                caller, token_id = authenticator.caller_of_credentials(token, address)
        except Denied as error:
            record_event(authenticator.settings, "login", "", read_trace_id(request), error)
            raise
        cookie = authenticator.logins.begin(token_id)
        record_event(authenticator.settings, "login", caller.name, read_trace_id(request))
        answer = JSONResponse(facts(caller, cookie))
        answer.set_cookie(
            authenticator.cookie_name, cookie, max_age=LOGIN_S, path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def show_caller(request: Request) -> Response:
        return JSONResponse(facts(caller_of_request(request), authenticator.read_cookie(request.headers)))

    async def log_out(request: Request) -> Response:
        await anyio.to_thread.run_sync(authenticator.logins.end, authenticator.read_cookie(request.headers))
        record_event(authenticator.settings, "logout", caller_of_request(request).name, read_trace_id(request))
        answer = Response(status_code=204)
        answer.delete_cookie(authenticator.cookie_name, path="/", httponly=True, samesite="strict")
        return answer

    app.add_route(LOGIN, log_in, methods=["POST"])
    app.add_route(LOGIN, show_caller, methods=["GET"])
    app.add_route(LOGOUT, log_out, methods=["POST"])
