"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

`code` is OpenAI's where OpenAI has one for the case, else the code of Trainyard's error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

import orjson
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard.errors import Refused, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.surfaces.openai.prefix import REQUEST_ID, is_wire
from trainyard.surfaces.problems import MEDIA_TYPE, RETRY_AFTER_S, http_status

CODES = {"E-AUTH": "invalid_api_key", "E-RATE": "rate_limit_exceeded", "E-JSON": None, "E-PARAMETER": None}
"""Codes of Trainyard for which OpenAI has its own."""
STATUSES = {422: 400, 424: 400}
"""A request that OpenAI refuses has the status 400."""
LOWEST_FAULT = 500
TYPE_OF_UNION = re.compile(r"literal\[.*\]|constrained-\w+|int|float|str|union\[.*\]")
"""A part of a location that names a type among several, not a field."""


class WireError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> JsonObject:
        kind = {429: "requests"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= LOWEST_FAULT else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {429: {"retry-after": str(RETRY_AFTER_S)}, 503: {"retry-after": str(RETRY_AFTER_S)}}
        return Response(
            orjson.dumps(self.body()), self.status, headers.get(self.status, {}), media_type="application/json"
        )


def translate_error(error: TrainyardError, param: str | None = None) -> WireError:
    """Return an error of an operation as the wire answers it."""
    status = http_status(error)
    reasons = error.reasons if isinstance(error, Refused) else ()
    text = " ".join(f"{reason.because} Instead: {reason.instead}" for reason in reasons)
    text = text or " ".join(part for part in (error.what, error.why, error.do) if part)
    return WireError(STATUSES.get(status, status), text, param=param, code=CODES.get(error.code, error.code))


def translate_problem(problem: Mapping[str, object], status: int) -> WireError:
    """Return a problem document, which the service answers before a request reaches the wire, as the wire answers
    it.
    """
    text = " ".join(str(problem[key]) for key in ("detail", "why", "do") if problem.get(key))
    code = str(problem.get("code") or "")
    return WireError(STATUSES.get(status, status), text, code=CODES.get(code, code or None))


def translate_validation(error: ValidationError) -> WireError:
    """Return the first thing that is wrong with a body, in OpenAI's words."""
    problems = error.errors(include_url=False, include_input=False)
    first = next((problem for problem in problems if problem["type"] != "literal_error"), problems[0])
    names = [str(part) for part in first["loc"] if not TYPE_OF_UNION.fullmatch(str(part))]
    path = "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in names).removeprefix(".") or None
    if first["type"] == "extra_forbidden":
        return unknown_parameter(path or "")
    if first["type"] == "missing":
        return missing_parameter(path or "")
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return WireError(400, f"Invalid value for '{path}': {first['msg']}.", param=path, code=code)


def missing_parameter(name: str) -> WireError:
    return WireError(400, f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def unknown_parameter(name: str) -> WireError:
    return WireError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def unknown_url(method: str, path: str) -> WireError:
    return WireError(404, f"Invalid URL ({method} {path[:200]})", code="unknown_url")


class WireErrors:
    """An ASGI app around the whole service: refusals on the way to the wire have the wire's shape.

    Every answer of the wire gets an `x-request-id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_wire(scope["path"]):
            return await self.app(scope, receive, send)
        problem: list[Message] = []

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = {key.lower(): value for key, value in message["headers"]}
                if headers.get(b"content-type", b"").startswith(MEDIA_TYPE.encode()):
                    problem.append(message)
                    return None
                return await send(message)
            if not problem:
                return await send(message)
            problem.append(message)
            if not message.get("more_body", False):
                await send_translated(problem, scope, send)

        await self.app(scope, receive, sending)


async def send_translated(messages: list[Message], scope: Scope, send: Send) -> None:
    """Send a problem document as an error of the wire, with the headers that it had."""
    start, body = messages[0], b"".join(message.get("body", b"") for message in messages[1:])
    try:
        problem = orjson.loads(body)
    except ValueError:
        problem = {"detail": HTTPStatus(start["status"]).phrase}
    error = translate_problem(problem, start["status"])
    if start["status"] == HTTPStatus.NOT_FOUND:
        error = unknown_url(scope["method"], scope["path"])
    content = orjson.dumps(error.body())
    headers_left = [
        (key, value) for key, value in start["headers"] if key.lower() not in (b"content-type", b"content-length")
    ]
    identity = (
        []
        if any(key.lower() == REQUEST_ID.encode() for key, _ in headers_left)
        else [(REQUEST_ID.encode(), f"req_{problem.get('trace') or ''}".encode())]
    )
    rows = [
        *headers_left,
        *identity,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": rows})
    await send({"type": "http.response.body", "body": content})
