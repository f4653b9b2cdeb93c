"""Prefect's OpenAPI document behind the guard: for callers with credentials alone, and built once."""

from __future__ import annotations

import asyncio
import base64
import time

import httpx
from prefect.server.api.server import create_app
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

from trainyard.app.access.guard import Guard
from trainyard.app.access.limits import WrongCredentials
from trainyard.prefect_api.guard import CountedCredentials, GuardedDocument, format_refusal

AUTH = "trainyard:a-string-of-this-test"
ADDRESS = "http://127.0.0.1:4200"


def authorization(auth_string: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(auth_string.encode()).decode()}"}


async def test_the_document_needs_credentials_and_is_built_once() -> None:
    guarded = GuardedDocument(create_app(final=True), AUTH)
    app = Guard(CountedCredentials(guarded, WrongCredentials(10)), [ADDRESS], format_refusal)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, timeout=60) as client:
        for headers in ({}, authorization("trainyard:another"), {"authorization": "Basic"}):
            for path in ("/openapi.json", "/openapi.json/"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, "E-AUTH" in answer.text) == (401, True)
        assert guarded.document is None  # nothing was built for them
        began = time.process_time()
        answers = await asyncio.gather(*(client.get("/openapi.json", headers=authorization(AUTH)) for _ in range(6)))
        first = time.process_time() - began
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert "/flow_runs/" in answers[0].json()["paths"]
        document = guarded.document
        began = time.process_time()
        again = await client.get("/openapi.json", headers=authorization(AUTH))
        assert time.process_time() - began < first / 4
        assert again.content == document
        assert guarded.document is document


async def test_no_other_path_builds_a_document_for_strangers() -> None:
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: AUTH}):
        guarded = GuardedDocument(create_app(final=True, ignore_cache=True), AUTH)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url=ADDRESS, timeout=60) as client:
        for path in ("/api/openapi.json", "/api/docs", "/docs", "/redoc", "//openapi.json", "/ui/../openapi.json"):
            answer = await client.get(path)
            assert len(answer.content) < 10_000, path  # a page that would read the document, or a refusal
    assert guarded.document is None
