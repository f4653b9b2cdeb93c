"""The service in this process, with everything in front of it: who gets in, how, and with which headers."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.types import ASGIApp

from trainyard.app.access.audit import list_audit, verify_audit
from trainyard.app.context import Context
from trainyard.app.stack.api_service import link_to, show_dashboard
from trainyard.errors import Unavailable
from trainyard.operations.access import AuditInput
from trainyard.operations.base import Nothing
from trainyard.settings import load_settings, settings
from trainyard.stores.auth_string import keep_auth
from trainyard.stores.secret_files import CODE_S, OWN_STRING, LoginFile, TokenFile
from trainyard.surfaces.access.authentication import FORGERY_HEADER, Authenticator
from trainyard.surfaces.access.entrance import MAX_HEADER_BYTES
from trainyard.surfaces.bodies import MAX_BODY_BYTES
from trainyard.surfaces.rest.service import build_guarded_app

OWN = "http://127.0.0.1:8898"
TOKENS = "/api/v1/tokens"


class Service:
    """The service of a home, asked over and over with the same cookies."""

    def __init__(self, app: ASGIApp, home: Path) -> None:
        self.app, self.tokens = app, TokenFile(home)
        self.cookies = httpx.Cookies()

    def ask(self, method: str, path: str, token: str = "", base: str = OWN, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=base, cookies=self.cookies) as client:
                answer = await client.request(method, path, headers=headers, **options)
                self.cookies = client.cookies
                return answer

        headers = {**({"authorization": f"Bearer {token}"} if token else {}), **options.pop("headers", {})}
        return anyio.run(send)

    def token(self, scope: str = "admin", tenant: str = "") -> str:
        return self.tokens.create(f"a-{scope}{tenant}", scope, tenant, 1)


@pytest.fixture
def service(home: Path) -> Service:
    keep_auth(settings())
    return Service(build_guarded_app(settings()), home)


def list_entries() -> list[tuple[str, str, str]]:
    context = Context(settings())
    assert verify_audit(Nothing(), context).problems == ()
    return [(entry.caller, entry.operation, entry.outcome) for entry in list_audit(AuditInput(), context).entries]


def test_every_way_in(service: Service) -> None:
    text = keep_auth(settings())
    basic = base64.b64encode(text.encode()).decode()
    part = text.partition(":")[2]
    ways = (f"Bearer {text}", f"Bearer {part}", f"Basic {basic}", f"bearer  {part} ", f"Bearer {service.token()}")
    for header in ways:
        assert service.ask("GET", TOKENS, headers={"authorization": header}).status_code == 200, header


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", "Bearer ty_", "Basic", "Basic !", "Basic dHJhaW55YXJkOg==", "Digest x", "ty_abc",
        "Bearer trainyard:", "Bearer \xff\xfe", "Basic /w==", "Bearer ty_" + "a" * 43, "Negotiate " + "a" * 3_000,
    ],
)  # fmt: skip
def test_no_other_way_in(service: Service, header: str) -> None:
    answer = service.ask("GET", TOKENS, headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["code"] == "E-AUTH"


def test_unknown_paths_look_like_known_ones_without_a_token(service: Service) -> None:
    for path in ("/", "/api/v1/nothing", TOKENS, "/api/v1/openapi.json", "/metrics", "/dashboardx"):
        assert service.ask("GET", path).status_code == 401, path
    assert service.ask("GET", "/health").status_code == 200


def test_a_revoked_token_opens_nothing_at_once(service: Service, home: Path) -> None:
    token = service.token("run")
    assert service.ask("GET", "/api/v1/backends?imports=false", token).status_code == 200
    TokenFile(home).revoke("a-run")
    assert service.ask("GET", "/api/v1/backends?imports=false", token).status_code == 401


def test_what_a_token_may_do(service: Service) -> None:
    reader, tenant, admin = service.token("read"), service.token("admin", "acme"), service.token()
    assert service.ask("GET", TOKENS, reader).json()["code"] == "E-SCOPE"
    assert service.ask("DELETE", f"{TOKENS}/a-read", reader).status_code == 403
    assert service.ask("DELETE", f"{TOKENS}/a-read", tenant).status_code == 403
    assert service.ask("POST", f"{TOKENS}/create", admin, json={"name": "x"}).json()["code"] == "E-LOCAL"
    assert service.ask("DELETE", f"{TOKENS}/a-read", admin).status_code == 200
    assert service.ask("DELETE", f"{TOKENS}/a-read", admin).status_code == 404
    assert service.ask("DELETE", f"{TOKENS}/a-admin", admin).json()["code"] == "E-CONFLICT"
    assert list_entries()[::-1] == [
        ("a-read", "tokens revoke", "denied"), ("a-adminacme", "tokens revoke", "denied"),
        ("a-admin", "tokens create", "denied"), ("a-admin", "tokens revoke", "done"),
        ("a-admin", "tokens revoke", "failed"), ("a-admin", "tokens revoke", "failed"),
    ]  # fmt: skip


def test_guessing_is_slowed_down_and_tokens_still_open(service: Service) -> None:
    statuses = [service.ask("GET", TOKENS, f"guess-{number}").status_code for number in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    answer = service.ask("GET", TOKENS, keep_auth(settings()))
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert service.ask("GET", TOKENS, service.token()).status_code == 200


def test_a_browser_logs_in_works_and_logs_out(service: Service) -> None:
    token = service.token("admin")
    answer = service.ask("POST", "/api/v1/login", json={"token": token})
    csrf = answer.json()["csrf"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert token not in str(answer.headers) + answer.text
    assert service.ask("GET", TOKENS).status_code == 200
    assert service.ask("GET", "/api/v1/login").json() == {
        "caller": "a-admin", "scope": "admin", "tenant": "", "csrf": csrf,
    }  # fmt: skip
    for header in ({}, {FORGERY_HEADER: ""}, {FORGERY_HEADER: csrf[:-1]}, {FORGERY_HEADER: csrf.upper() + "x"}):
        refused = service.ask("DELETE", f"{TOKENS}/none", headers=header)
        assert (refused.status_code, refused.json()["code"]) == (403, "E-REQUEST-REFUSED")
    assert service.ask("DELETE", f"{TOKENS}/none", headers={FORGERY_HEADER: csrf}).status_code == 404
    assert service.ask("POST", "/api/v1/logout").status_code == 403
    cookies = httpx.Cookies(service.cookies)
    assert service.ask("POST", "/api/v1/logout", headers={FORGERY_HEADER: csrf}).status_code == 204
    service.cookies = cookies
    assert service.ask("GET", TOKENS).status_code == 401
    assert [entry[1] for entry in list_entries()] == ["logout", "tokens revoke", "login"]


def test_a_link_logs_one_browser_in_once(service: Service, home: Path) -> None:
    with pytest.raises(Unavailable, match="E-SERVER-UNREACHABLE: The dashboard is not running"):
        show_dashboard(Nothing(), Context(settings()))
    cookie_name = Authenticator(settings()).cookie_name
    code = link_to("http://127.0.0.1:8898", settings()).partition("#login=")[2]
    assert service.ask("GET", TOKENS, headers={"cookie": f"{cookie_name}={code}"}).status_code == 401
    assert service.ask("POST", "/api/v1/login", json={"token": code}).json()["scope"] == "admin"
    assert service.ask("GET", TOKENS).status_code == 200
    again = service.ask("POST", "/api/v1/login", json={"token": code})
    assert (again.status_code, again.json()["code"]) == (401, "E-AUTH")
    assert code not in (home / "access" / "logins.json").read_text()
    late = LoginFile(home).offer_code(OWN_STRING, now=time.time() - CODE_S - 1)
    assert service.ask("POST", "/api/v1/login", json={"token": late}).status_code == 401


def test_a_login_ends_with_its_token(service: Service, home: Path) -> None:
    service.ask("POST", "/api/v1/login", json={"token": service.token("read")})
    assert service.ask("GET", "/api/v1/login").status_code == 200
    TokenFile(home).revoke("a-read")
    assert service.ask("GET", "/api/v1/login").json()["detail"] == "The login has ended."


def test_a_wrong_token_beats_a_right_cookie(service: Service) -> None:
    service.ask("POST", "/api/v1/login", json={"token": service.token()})
    assert service.ask("GET", TOKENS, "wrong").status_code == 401


@pytest.mark.parametrize(
    "body", [{}, {"token": ""}, {"token": 1}, {"token": "x", "more": 1}, {"token": "x" * 2000}, []]
)
def test_a_login_without_a_token_is_no_valid_one(service: Service, body: Any) -> None:
    assert service.ask("POST", "/api/v1/login", json=body).status_code in (400, 422)


def test_a_wrong_login_is_refused_and_noted(service: Service) -> None:
    answer = service.ask("POST", "/api/v1/login", json={"token": "wrong"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert list_entries() == [("", "login", "denied")]


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (400, "GET", {"host": "evil.example"}),
        (400, "GET", {"host": "evil.example:8898", "origin": "http://evil.example:8898"}),
        (403, "GET", {"origin": "https://evil.example"}),
        (403, "POST", {"origin": "null"}),
        (403, "GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        (415, "POST", {"content-type": "text/plain"}),
        (415, "POST", {"content-type": "application/x-www-form-urlencoded"}),
        (415, "POST", {"content-type": "multipart/form-data; boundary=x"}),
    ],
)
def test_pages_of_others_are_refused_with_a_problem(
    service: Service, status: int, method: str, headers: dict[str, str]
) -> None:
    answer = service.ask(method, "/api/v1/check", service.token(), headers=headers, content=b"{}")
    assert answer.status_code == status
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (status, "E-REQUEST-REFUSED")
    assert answer.headers["content-type"] == "application/problem+json"
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers(service: Service) -> None:
    token = service.token()
    for path, caller_token in (("/health", ""), (TOKENS, token), (TOKENS, ""), ("/api/v1/none", token)):
        headers = service.ask("GET", path, caller_token).headers
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    page = service.ask("GET", "/dashboard/jobs", token).headers
    assert "unsafe" not in page["content-security-policy"]
    assert "default-src 'self'" in page["content-security-policy"]


def test_lengths(service: Service) -> None:
    token = service.token()
    assert service.ask("GET", f"/api/v1/none?{'a' * 9_000}", token).json()["code"] == "E-LIMIT"
    assert service.ask("GET", TOKENS, token, headers={"x": "a" * MAX_HEADER_BYTES}).json()["code"] == "E-LIMIT"
    answer = service.ask("POST", "/api/v1/check", token, content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "E-BODY-LENGTH")

    async def unsaid() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * (1 << 19)

    assert service.ask("POST", "/api/v1/check", token, content=unsaid(), headers=JSON).status_code == 413
    assert service.ask("POST", "/api/v1/login", content=unsaid(), headers=JSON).status_code == 413


JSON = {"content-type": "application/json"}


def test_a_caller_that_asks_too_often_waits_and_others_do_not(home: Path) -> None:
    keep_auth(settings())
    slow = Service(build_guarded_app(load_settings(api_requests_per_s=2)), home)
    reader, runner = slow.token("read"), slow.token("run")
    assert [slow.ask("GET", "/api/v1/none", reader).status_code for _ in range(6)] == [404] * 4 + [429] * 2
    answer = slow.ask("GET", "/api/v1/none", reader)
    assert answer.json()["code"] == "E-RATE"
    assert answer.headers["retry-after"] == "1"
    assert slow.ask("GET", "/api/v1/none", runner).status_code == 404


def test_names_and_origins_of_the_settings(home: Path) -> None:
    keep_auth(settings())
    named = load_settings(api_hosts=["lab.example.org"], api_origins=["https://lab.example.org"])
    service = Service(build_guarded_app(named), home)
    assert service.ask("GET", "/health", base="http://lab.example.org").status_code == 200
    assert service.ask("GET", "/health", headers={"origin": "https://lab.example.org"}).status_code == 200
    assert service.ask("GET", "/health", base="http://other.example.org").status_code == 400


def test_without_authentication_everybody_is_the_owner_but_pages_of_others_are_not(home: Path) -> None:
    service = Service(build_guarded_app(settings(), everybody=True), home)
    assert service.ask("GET", TOKENS).status_code == 200
    assert service.ask("GET", TOKENS, headers={"origin": "https://evil.example"}).status_code == 403
    assert service.ask("POST", f"{TOKENS}/create", json={"name": "x"}).json()["code"] == "E-LOCAL"
