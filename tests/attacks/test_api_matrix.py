"""Every route of the API with every kind of caller, against a process: who gets in, exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.api_process import serving
from trainyard.operations.table import OPERATIONS, Scope, find_route
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

NOBODY, WRONG = "nobody", "wrong"
CALLERS = {
    "reader": ("read", ""),
    "runner": ("run", ""),
    "admin": ("admin", ""),
    "blue-reader": ("read", "blue"),
    "blue-runner": ("run", "blue"),
    "blue-admin": ("admin", "blue"),
}
"""Token -> scope and tenant."""
SERVICE_ROUTES = (("GET", "/metrics"), ("GET", "/api/v1/openapi.json"), ("GET", "/api/v1/login"))
NEVER = {"zz": "1"}
"""A parameter that no operation has: an admitted request is refused for it, and nothing is executed."""
EVIL = (
    (400, {"host": "evil.example"}), (400, {"host": "127.0.0.1.evil.example"}), (403, {"origin": "https://evil.example"}),
    (403, {"origin": "null"}), (403, {"origin": "http://localhost:1"}), (403, {"sec-fetch-site": "cross-site"}),
)  # fmt: skip


@dataclass(frozen=True)
class Running:
    """The service, and a token for each kind of caller."""

    client: httpx.Client
    tokens: dict[str, str]

    def ask(self, method: str, path: str, caller: str, **options: object) -> httpx.Response:
        request_headers = dict(options.pop("headers", {}))  # type: ignore[call-overload]
        if caller != NOBODY:
            request_headers["authorization"] = f"Bearer {self.tokens.get(caller, 'ty_' + 'a' * 43)}"
        return self.client.request(method, path, headers=request_headers, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with versions of a role of two tenants."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("api") / "home"
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("TRAINYARD_HOME", str(home))
        patch.setenv("TRAINYARD_API_REQUESTS_PER_S", "100000")
        folder = tmp_path_factory.mktemp("adapter")
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        registry = AdapterRegistry(load_settings(home=home).adapters)
        for tenant in ("blue", "red"):
            registry.register(tenant, "bot", folder, facts={"base_model": "starter", "evaluated": True})
            registry.promote(f"{tenant}/bot/v1")
        tokens = {name: TokenFile(home).create(name, scope, tenant, 1) for name, (scope, tenant) in CALLERS.items()}
        with serving() as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield Running(client, tokens)


def send_never(running: Running, name: str, caller: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """The answer to a request of an operation that is refused at the latest for its parameter."""
    method, path = find_route(name)
    body = {} if method == "GET" else {"json": {}}
    url = path.replace("{", "x").replace("}", "")
    return running.ask(method, url, caller, params=NEVER, headers=headers or {}, **body)


def expect_answer(name: str, caller: str) -> tuple[int, str]:
    """Status and code of the answer to a request with `NEVER`."""
    if caller in (NOBODY, WRONG):
        return 401, "E-AUTH"
    row, (word, tenant), scopes = OPERATIONS[name], CALLERS[caller], list(Scope)
    if scopes.index(row.scope) > scopes.index(Scope(word)) or (tenant and not row.tenants):
        return 403, "E-SCOPE"
    return (403, "E-LOCAL") if row.local else (422, "E-PARAMETER")


@pytest.mark.parametrize("caller", [NOBODY, WRONG, *CALLERS])
def test_every_operation(caller: str, running: Running) -> None:
    answers, expected_answers = {}, {}
    for name in OPERATIONS:
        answer = send_never(running, name, caller)
        answers[name] = answer.status_code, answer.json()["code"]
        expected_answers[name] = expect_answer(name, caller)
    assert answers == expected_answers


def test_the_table_of_expectations_is_not_all_one() -> None:
    """What the matrix above says, in numbers: no column is empty."""
    counts = {caller: [expect_answer(name, caller)[1] for name in OPERATIONS] for caller in CALLERS}
    assert all(counts[caller].count("E-PARAMETER") > 10 for caller in CALLERS)
    assert counts["reader"].count("E-SCOPE") > 40 > counts["runner"].count("E-SCOPE")
    assert counts["blue-admin"].count("E-SCOPE") > 10
    assert counts["admin"].count("E-SCOPE") == 0 < counts["admin"].count("E-LOCAL")


@pytest.mark.parametrize("caller", [NOBODY, WRONG, *CALLERS])
def test_the_service_s_own_routes(caller: str, running: Running) -> None:
    status = 401 if caller in (NOBODY, WRONG) else 200
    assert {running.ask(method, path, caller).status_code for method, path in SERVICE_ROUTES} == {status}
    assert running.ask("GET", "/health", caller).status_code == 200
    if status == 401:
        assert running.ask("POST", "/mcp", caller, json={}).status_code == 401
    unknown = {running.ask(method, "/api/v1/none", caller).status_code for method in ("GET", "POST", "DELETE", "PUT")}
    assert unknown == {401 if status == 401 else 404}
    assert running.ask("PATCH", "/api/v1/chains", caller).status_code == (401 if status == 401 else 405)


def test_what_another_tenant_has_looks_like_what_is_not_there(running: Running) -> None:
    """Same status, same words; of chains also after one was stored."""
    chain = {"name": "reds", "nodes": [{"type": "data_source", "config": {"path": "docs"}}]}
    stored = running.ask("POST", "/api/v1/chains", "runner", json={**chain, "tenant": "red"})
    requests: list[tuple[str, str, dict[str, object]]] = [
        ("GET", "/api/v1/adapters/show?name={}/bot", {}),
        ("GET", "/api/v1/adapters/show?name={}/bot/v1", {}),
        ("GET", "/api/v1/adapters/card?name={}/bot/v1", {}),
        ("POST", "/api/v1/adapters/promote", {"name": "{}/bot/v1"}),
        ("POST", "/api/v1/adapters/rollback", {"role": "{}/bot"}),
        ("POST", "/api/v1/adapters/delete-version", {"name": "{}/bot/v1", "force": True}),
    ]
    assert stored.status_code in (200, 201), stored.text
    chain_id, unknown_id = stored.json()["id"], "chain-000000000000"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run"), ("GET", "/runs")):
        foreign_answer = get_answer(running, method, f"/api/v1/chains/{chain_id}{path}", chain_id)
        assert foreign_answer == get_answer(running, method, f"/api/v1/chains/{unknown_id}{path}", unknown_id)
        assert foreign_answer[0] == 404
    for method, path, body in requests:
        foreign, missing = (
            get_answer(
                running, method, path.format(tenant), tenant, json.loads(json.dumps(body).replace("{}/", f"{tenant}/"))
            )
            for tenant in ("red", "nobody")
        )
        assert foreign == missing
        assert foreign[0] in (404, 409)
    assert running.ask("GET", "/api/v1/chains", "blue-admin").json()["chains"] == []
    assert "red" not in running.ask("GET", "/api/v1/adapters", "blue-admin").text
    assert running.ask("GET", "/api/v1/adapters/show?name=red/bot", "reader").status_code == 200


def get_answer(
    running: Running, method: str, path: str, word: str, body: dict[str, object] | None = None
) -> tuple[int, str]:
    """Status and text of an answer to blue's admin, with the name that was requested and the trace taken out."""
    answer = running.ask(method, path, "blue-admin", **({"json": body} if body else {}))
    assert answer.headers["content-type"] == "application/problem+json", (path, answer.status_code, answer.text)
    problem = answer.json() | {"trace": ""}
    return answer.status_code, json.dumps(problem).replace(word, "NAME")


@pytest.mark.parametrize(("status", "headers"), EVIL)
def test_no_page_of_another_origin_reaches_any_route(status: int, headers: dict[str, str], running: Running) -> None:
    """DNS rebinding by Host, forged requests by Origin and Sec-Fetch-Site; also with a right token."""
    for name in OPERATIONS:
        answer = send_never(running, name, "admin", headers)
        assert (answer.status_code, answer.json()["code"]) == (status, "E-REQUEST-REFUSED"), name


def test_forms_and_plain_texts_are_refused_by_every_route(running: Running) -> None:
    for name in OPERATIONS:
        method, path = find_route(name)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
            answer = running.ask(
                method, path.replace("{", "x").replace("}", ""), "admin", params=NEVER, content=b"{}",
                headers={"content-type": kind},
            )  # fmt: skip
            assert method == "GET" or answer.status_code == 415, (name, kind)


def test_a_cookie_without_its_token_changes_nothing(running: Running) -> None:
    login = running.client.post("/api/v1/login", json={"token": running.tokens["admin"]})
    running.client.cookies.clear()
    cookie = {"cookie": login.headers["set-cookie"].partition(";")[0]}
    try:
        for name in OPERATIONS:
            method, path = find_route(name)
            path = path.replace("{", "x").replace("}", "")
            body = {} if method == "GET" else {"json": {}}
            answer = running.client.request(method, path, params=NEVER, headers=cookie, **body)  # type: ignore[arg-type]
            expected_answer = expect_answer(name, "admin") if method == "GET" else (403, "E-REQUEST-REFUSED")
            assert (answer.status_code, answer.json()["code"]) == expected_answer, name
            right = cookie | {"x-csrf-token": login.json()["csrf"]}
            answer = running.client.request(method, path, params=NEVER, headers=right, **body)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["code"]) == expect_answer(name, "admin"), name
    finally:
        running.client.cookies.clear()


DEEP = b'{"target":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BROKEN: list[tuple[int, bytes]] = [
    (400, b"{"), (400, b"\xff\xfe"), (400, b"[]"), (400, b'"a"'), (400, b"NaN"), (400, b'{"target": NaN}'),
    (400, b'{"target": "a", "target": "b"}'), (400, b'{"parameters": {"a": 1, "a": 2}}'), (413, DEEP),
    (400, b'{"target": 1e999999999' + b"9" * 10), (422, b'{"target": 1}'), (422, b'{"target": null}'),
    (422, b'{"target": "qa-pipeline", "zz": 1}'), (422, b'{"target": "qa-pipeline", "parameters": []}'),
    (422, b'{"target": "qa-pipeline", "refresh": "yes"}'), (422, b'{"target": {"nodes": []}}'),
    (413, b" " * (9 << 20)),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), BROKEN, ids=range(len(BROKEN)))
def test_bodies_that_are_broken(status: int, body: bytes, running: Running) -> None:
    answer = running.ask(
        "POST", "/api/v1/runs", "runner", content=body, headers={"content-type": "application/json"}
    )  # fmt: skip
    assert answer.status_code == status, answer.text[:300]
    assert answer.json()["status"] == status


def test_every_denied_change_is_in_the_audit_log(running: Running) -> None:
    running.ask("POST", "/api/v1/gc", "reader", params=NEVER)
    entries = running.ask("GET", "/api/v1/audit?operation=gc&outcome=denied&limit=1", "admin").json()["entries"]
    assert [(entry["caller"], entry["code"], entry["surface"]) for entry in entries] == [("reader", "E-SCOPE", "rest")]
    assert running.ask("GET", "/api/v1/audit/verify", "admin").json()["problems"] == []


def test_nothing_of_it_is_left_elsewhere(running: Running, tmp_path: Path) -> None:
    assert running.ask("GET", "/api/v1/tokens", "admin").json()["tokens"]
    assert not list(tmp_path.iterdir())
