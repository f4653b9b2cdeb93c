"""The REST API in this process: every operation has a route, a document describes it, errors are problem documents."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import openapi_spec_validator
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as RequestScope

import trainyard
from trainyard.app.access.audit import open_log
from trainyard.app.context import OWNER, Caller
from trainyard.errors import Denied, InvalidInput, TrainyardError, Unavailable
from trainyard.operations.table import OPERATIONS, Scope, find_route
from trainyard.settings import settings
from trainyard.stores.auth_string import keep_auth
from trainyard.surfaces.problems import MEDIA_TYPE, STATUS, http_status
from trainyard.surfaces.rest.app import build_app
from trainyard.surfaces.rest.openapi import SERVICE_ROUTES, openapi_document
from trainyard.surfaces.rest.routes import operation_id, path_order
from trainyard.surfaces.rest.service import build_guarded_app

CALLERS = {
    "owner": OWNER,
    "remote": Caller("remote", remote=True),
    "reader": Caller("reader", Scope.READ, remote=True),
    "tenant": Caller("tenant", tenant="blue", remote=True),
}


def authenticate(request: Request) -> Caller:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    if name not in CALLERS:
        raise Denied("Nobody has this token.", code="E-AUTH")
    return CALLERS[name]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return build_app(settings(), authenticate)


def ask(app: ASGIApp, method: str, path: str, *, caller: str = "remote", **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            headers = {"authorization": f"Bearer {caller}", **options.pop("headers", {})}
            return await client.request(method, path, headers=headers, **options)

    return anyio.run(send)


def test_the_path_of_a_request_with_a_body_has_texts() -> None:
    """The Python client writes these fields into the path as they are, without what makes JSON of them."""
    for name in OPERATIONS:
        method, path = find_route(name)
        fields = OPERATIONS[name].request.model_fields
        for word in (part[1:-1] for part in path.split("/") if part.startswith("{")):
            assert method == "GET" or fields[word].annotation is str, (name, word)


def test_every_operation_has_one_route_of_its_own() -> None:
    routes = [find_route(name) for name in OPERATIONS]
    assert len(set(routes)) == len(routes)
    for name, (method, path) in zip(OPERATIONS, routes, strict=True):
        assert method in ("GET", "POST", "PUT", "DELETE"), name
        fields = OPERATIONS[name].request.model_fields
        assert {part[1:-1] for part in path.split("/") if part.startswith("{")} <= set(fields), name


def test_nothing_that_starts_work_is_asked_for_by_get() -> None:
    for name, row in OPERATIONS.items():
        if find_route(name)[0] == "GET":
            assert row.scope is not Scope.RUN, name


def test_the_document_is_openapi_and_has_every_operation() -> None:
    document = openapi_document()
    openapi_spec_validator.validate(document)
    operations = {
        operation["operationId"]: operation for path in document["paths"].values() for operation in path.values()
    }
    assert operations.keys() == {*map(operation_id, OPERATIONS), *(route.id for route in SERVICE_ROUTES.values())}
    for name, row in OPERATIONS.items():
        assert operations[operation_id(name)]["summary"] == row.summary
        assert operations[operation_id(name)]["x-scope"] == row.scope.value


def test_every_field_of_a_request_is_in_the_document() -> None:
    document = openapi_document()
    for name, row in OPERATIONS.items():
        method, path = find_route(name)
        operation = document["paths"][path][method.lower()]
        named = {parameter["name"] for parameter in operation["parameters"]}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if "$ref" in body and not row.body:
            named |= set(document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]["properties"])
        query_fields = set(row.request.model_fields) - {row.body, "if_match"}
        assert query_fields <= named, name


def test_a_path_without_parameters_comes_before_one_with_them() -> None:
    assert sorted(["/chains/{chain}", "/chains/templates"], key=path_order) == ["/chains/templates", "/chains/{chain}"]


def test_health_needs_no_token(app: FastAPI) -> None:
    answer = ask(app, "GET", "/health", caller="")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "version": trainyard.__version__, "worker": "unknown"}


def test_the_routes_of_the_service_answer_as_the_document_says() -> None:
    document = openapi_document()
    app = build_guarded_app(settings())
    token = keep_auth(settings()).partition(":")[2]
    bodies: dict[str, dict[str, Any]] = {"login": {"json": {"token": token}}, "logout": {}}
    assert {route.id for route in SERVICE_ROUTES.values() if route.open} == {"health", "login"}
    for (method, path), route in SERVICE_ROUTES.items():
        described = document["paths"][path][method.lower()]["responses"]
        nobody = ask(app, method, path, caller="", **bodies.get(route.id, {}))
        assert (nobody.status_code == 401) is not route.open, path
        answer = ask(app, method, path, caller=token, **bodies.get(route.id, {}))
        assert str(answer.status_code) == next(iter(described)), path
        content = described[str(answer.status_code)].get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert [kind] * len(content) == list(content), path
        if route.answer:
            route.answer.model_validate_json(answer.content)
        else:
            assert bool(answer.content) is bool(content), path
    wrong = ask(app, "POST", "/api/v1/login", json={"token": ""})
    assert (wrong.status_code, wrong.headers["content-type"]) == (422, MEDIA_TYPE)


def test_an_operation_answers_with_its_response(app: FastAPI) -> None:
    answer = ask(app, "GET", "/api/v1/chains/templates")
    assert answer.status_code == 200
    assert "qa-pipeline" in answer.text


def test_a_body_is_the_request(app: FastAPI, tmp_path: Path) -> None:
    chain = {"nodes": [{"type": "data_source", "config": {"path": "none.jsonl"}}, {"type": "trainer"}]}
    answer = ask(app, "POST", "/api/v1/check", json={"files": [chain]})
    (file,) = answer.json()["files"]
    assert not file["ok"]
    assert file["reasons"][0]["code"] == "E-DATA-NOT-FOUND"


def test_a_body_may_be_one_field(app: FastAPI) -> None:
    body = {"name": "one", "dataset": {"path": "none.jsonl"}, "hyperparams": {"epochs": 1}}
    answer = ask(app, "POST", "/api/v1/jobs", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["code"] == "E-DATA-NOT-FOUND"


@pytest.mark.parametrize(
    ("options", "status", "code", "text"),
    [
        ({"content": b"{"}, 400, "E-JSON", "not valid JSON"),
        ({"content": b'{"files": [], "files": []}'}, 400, "E-JSON", "'files' occurs twice"),
        ({"content": b'{"files": [NaN]}'}, 400, "E-JSON", "NaN is not JSON"),
        ({"content": b"[1]"}, 400, "E-JSON", "not a JSON object"),
        ({"content": b'{"files": ' + b"[" * 200 + b"]" * 200 + b"}"}, 400, "E-JSON", "more than 100 levels"),
        ({"content": b"[" * 15_000}, 400, "E-JSON", "nested too deeply"),
        ({"content": b"\xff\xfe"}, 400, "E-JSON", "not valid JSON"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "E-MEDIA-TYPE", "text/plain"),
        ({"json": {"files": [], "more": 1}}, 422, "E-PARAMETER", "more"),
        ({"json": {"files": "a.yaml"}}, 422, "E-PARAMETER", "files"),
        ({"json": {"files": ["a.yaml"]}, "params": {"x": "1"}}, 422, "E-PARAMETER", "in the query"),
        ({"content": b'{"files": ["' + b"a" * (9 << 20) + b'"]}'}, 413, "E-BODY-LENGTH", "8,388,608"),
    ],
)  # fmt: skip
def test_a_bad_body_is_a_problem(app: FastAPI, options: dict[str, Any], status: int, code: str, text: str) -> None:
    all_options = {**options, "headers": {"content-type": "application/json", **options.get("headers", {})}}
    answer = ask(app, "POST", "/api/v1/check", **all_options)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert text in answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=many", "limit"),
        ("limit=1&limit=2", "twice"),
        ("nothing=1", "Leave it out"),
        ("limit=0", "limit"),
        ("limt=1", "Did you mean 'limit'?"),
    ],
)
def test_a_bad_query_is_a_problem(app: FastAPI, query: str, text: str) -> None:
    answer = ask(app, "GET", f"/api/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "E-PARAMETER")
    assert text in answer.text


@pytest.mark.parametrize(
    ("caller", "method", "path", "status", "code"),
    [
        ("", "GET", "/api/v1/chains/templates", 401, "E-AUTH"),
        ("wrong", "POST", "/api/v1/check", 401, "E-AUTH"),
        ("reader", "POST", "/api/v1/runs", 403, "E-SCOPE"),
        ("tenant", "GET", "/api/v1/nightly", 403, "E-SCOPE"),
        ("remote", "POST", "/api/v1/up", 403, "E-LOCAL"),
        ("remote", "GET", "/api/v1/nothing", 404, "E-NOT-FOUND"),
        ("remote", "DELETE", "/api/v1/jobs", 405, "E-METHOD"),
    ],
)
def test_who_may_ask_for_what(app: FastAPI, caller: str, method: str, *, path: str, status: int, code: str) -> None:
    answer = ask(app, method, path, caller=caller)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)


def test_allow_names_the_methods_of_all_routes_of_a_path(app: FastAPI) -> None:
    assert ask(app, "DELETE", "/api/v1/jobs").headers["allow"] == "GET, POST"


def test_without_prefect_the_service_says_so(app: FastAPI) -> None:
    answer = ask(app, "GET", "/api/v1/jobs/job-0123456789ab/logs")
    assert (answer.status_code, answer.json()["code"]) == (503, "E-NO-SERVER")
    assert int(answer.headers["retry-after"]) > 0


def test_a_trace_id_comes_back_with_a_problem(app: FastAPI) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = ask(app, "GET", "/nothing", headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    assert answer.json()["trace"] == trace
    assert len(ask(app, "GET", "/nothing", headers={"traceparent": "00-zz-x-01"}).json()["trace"]) == 32


def test_every_class_of_error_has_a_status() -> None:
    for kind in STATUS:
        assert 400 <= http_status(kind("x")) < 500
    assert http_status(Unavailable("x", code="E-SERVER-UNREACHABLE")) == 503
    assert http_status(TrainyardError("x")) == 422
    assert http_status(InvalidInput("x", code="E-JSON")) == 400


def test_the_document_needs_a_token_and_is_json(app: FastAPI) -> None:
    assert ask(app, "GET", "/api/v1/openapi.json", caller="").status_code == 401
    assert json.loads(ask(app, "GET", "/api/v1/openapi.json").text)["openapi"] == "3.1.0"


def test_requests_are_counted_by_operation_and_by_nothing_that_a_client_chose(app: FastAPI) -> None:
    for path in ("/api/v1/chains/templates", "/api/v1/chains/templates", "/api/v1/nothing-of-the-kind"):
        ask(app, "GET", path)
    assert ask(app, "GET", "/metrics", caller="").status_code == 401
    text = ask(app, "GET", "/metrics").text
    assert 'trainyard_requests_total{method="GET",operation="templates",status="200"} 2.0' in text
    assert 'trainyard_requests_total{method="GET",operation="other",status="404"} 1.0' in text
    assert "of-the-kind" not in text


VERB = "/api/v1/sessions/session-0123456789ab/forward"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", VERB, 404, "E-NOT-FOUND"),
        ("POST", VERB.replace("session-0123456789ab", "a%2Fb"), 404, "E-NOT-FOUND"),
        ("POST", VERB.replace("session-0123456789ab", "..%2F.."), 404, "E-NOT-FOUND"),
        ("POST", "/api/v1/sessions//forward", 404, "E-NOT-FOUND"),
        ("POST", f"{VERB}/", 404, "E-NOT-FOUND"),
        ("POST", f"{VERB}/forward", 404, "E-NOT-FOUND"),
        ("POST", "/api/v1/jobs/session-0123456789ab/forward", 404, "E-NOT-FOUND"),
        ("POST", "/forward", 404, "E-NOT-FOUND"),
        ("GET", VERB, 405, "E-METHOD"),
        ("DELETE", VERB, 405, "E-METHOD"),
    ],
)
def test_paths_of_a_verb(app: FastAPI, method: str, path: str, status: int, code: str) -> None:
    body = {"json": {"rows": ["a"]}} if method == "POST" else {}
    answer = ask(app, method, path, **body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE


def test_each_kind_of_refusal_of_a_verb(app: FastAPI) -> None:
    bodies: list[dict[str, Any]] = [
        {"json": {"rows": ["a"]}}, {"json": {"rows": 5}}, {"json": {"unknown": 1}},
        {"content": b"{", "headers": {"content-type": "application/json"}}, {"content": b"", "caller": ""},
        {"json": {"session": "twice"}}, {"json": {"rows": ["a"]}, "caller": "reader"},
    ]  # fmt: skip
    answers = [ask(app, "POST", VERB, **body) for body in bodies]
    counted = ask(app, "GET", "/metrics").text
    assert 'operation="sessions forward",status="404"} 1.0' in counted
    assert [answer.status_code for answer in answers] == [404, 422, 422, 400, 401, 422, 403]


def test_a_bug_of_a_verb_is_answered_as_any_other(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of this test")

    monkeypatch.setattr("trainyard.app.sessions.calls.operate", fail)
    answer = ask(app, "POST", VERB, json={"rows": ["a"]})
    assert (answer.status_code, answer.json()["code"]) == (500, "E-BUG")
    assert [line["code"] for line in open_log(settings().home).lines() if line["phase"] == "ended"] == [
        "ZeroDivisionError"
    ]


def test_how_a_verb_ended_is_written_after_its_answer(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was asked for before it is in the log when it is carried out, and a slow client is not waited for."""
    reply = {"session": "session-0123456789ab", "op_seq": 1, "verb": "forward", "state": "done"}
    phases: dict[str, list[str]] = {}
    times_s: dict[str, float] = {}

    def note(when: str) -> None:
        times_s[when] = time.monotonic()
        phases[when] = [line["phase"] for line in open_log(settings().home).lines()]

    def operate(*_: object) -> dict[str, Any]:
        note("carried out")
        return reply

    monkeypatch.setattr("trainyard.app.sessions.calls.operate", operate)

    async def watch_app(scope: RequestScope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                note("answered")
                await anyio.sleep(0.5)

        await app(scope, receive, sending)

    note("sent")
    answer = ask(watch_app, "POST", VERB, json={"rows": ["a"]})
    assert answer.status_code == 200, answer.text
    note("over")
    assert phases == {"sent": [], "carried out": ["begun"], "answered": ["begun"], "over": ["begun", "ended"]}
    (ended,) = [line for line in open_log(settings().home).lines() if line["phase"] == "ended"]
    assert (ended["outcome"], ended["targets"]) == ("done", {"session": reply["session"]})
    assert ended["seconds"] <= times_s["answered"] - times_s["sent"] + 0.01
