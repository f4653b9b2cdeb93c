"""The boundary of a server around applications that fail before, during and after their answer."""

from __future__ import annotations

import logging

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trainyard.serve.failures import AnswerFailures

LOG = logging.getLogger("trainyard.test")


def fail(*_: object) -> None:
    raise ZeroDivisionError("of this test")


async def fail_before(request: Request) -> Response:
    fail()
    return Response()


async def fail_after(request: Request) -> Response:
    return JSONResponse({"answered": True}, background=BackgroundTask(fail))


async def fail_during(request: Request) -> Response:
    async def parts() -> object:
        yield b"half"
        fail()

    return StreamingResponse(parts())  # type: ignore[arg-type]


async def leave(request: Request) -> Response:
    raise ClientDisconnect


def answer_failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": type(error).__name__}, 500)


async def ask(path: str) -> httpx.Response:
    handlers = {"/before": fail_before, "/after": fail_after, "/during": fail_during, "/left": leave}
    boundary = Middleware(AnswerFailures, answer=answer_failure, log=LOG)
    app = Starlette(routes=[Route(name, handler) for name, handler in handlers.items()], middleware=[boundary])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        return await client.get(path)


async def test_a_failure_is_answered_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask("/before")
    assert (answer.status_code, answer.json()) == (500, {"error": "ZeroDivisionError"})
    (record,) = caplog.records
    assert record.getMessage() == "GET failed"
    assert record.exc_info is not None


async def test_a_failure_after_the_answer_is_logged_alone(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask("/after")
    assert (answer.status_code, answer.json()) == (200, {"answered": True})
    assert [record.getMessage() for record in caplog.records] == ["GET failed"]


async def test_a_failure_in_the_middle_of_an_answer_reaches_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        await ask("/during")
    assert caplog.records == []  # the server logs it, and closes the connection


async def test_a_client_that_left_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AssertionError):  # of httpx's transport: nobody is there to be answered
        await ask("/left")
    assert caplog.records == []
