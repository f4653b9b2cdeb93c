"""Attacks on the Prefect server of a home: by a page in a browser, by a name of its own, by another user.

Without the guard and the string each of them creates a deployment, and the worker runs what it says.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page, Response, sync_playwright
from prefect.server.api.server import create_app
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_SERVER_API_AUTH_STRING,
    PREFECT_UI_ENABLED,
    temporary_settings,
)
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.chromium import MISSING, find_chromium
from trainyard.app.access.guard import Guard
from trainyard.app.access.limits import WrongCredentials
from trainyard.app.services import start_server, stop
from trainyard.app.stack import doctor
from trainyard.compute.services import Service
from trainyard.prefect_api.guard import CREDENTIALS_S, CountedCredentials, format_refusal
from trainyard.prefect_api.states import asker
from trainyard.serve.listening import HEAD_S, MAX_HEAD_BYTES
from trainyard.settings import Settings, settings
from trainyard.stores.auth_string import auth_file, auth_header, read_auth
from trainyard.testing.loopback import LoopbackServer, serving

ORIGINS = ("http://127.0.0.1:4200", "http://localhost:4200", "https://prefect.example.com")
OWN, EVIL = ORIGINS[0], "https://evil.example"
AUTH = "trainyard:a-string-of-this-test"
JSON_BODY = {"content-type": "application/json", "content-length": "2"}
TEXT_BODY = {"content-type": "text/plain;charset=UTF-8", "content-length": "2"}
FORM_BODY = {"content-type": "application/x-www-form-urlencoded", "content-length": "2"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says yes to everything that reaches it."""
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def send_to_guard(headers: dict[str, str], method: str = "GET", kind: str = "http") -> list[Message]:
    """What the guard sends for one request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{kind}.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    rows = [(key.encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": kind, "method": method, "path": "/api/flows/", "headers": rows}
    await Guard(echo, ORIGINS, format_refusal)(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"host": "127.0.0.1:4200"}),
        ("GET", {"host": "localhost:8080"}),
        ("GET", {"host": "[::1]:4200", "origin": "http://[::1]:4200"}),
        ("GET", {"host": "LOCALHOST:4200", "origin": "http://localhost:4200", "sec-fetch-site": "same-origin"}),
        ("GET", {"host": "localhost:8080", "origin": "http://localhost:8080"}),  # through a forwarded port
        ("OPTIONS", {"host": "127.0.0.1:4200", "origin": "http://localhost:4200", "sec-fetch-site": "cross-site"}),
        ("GET", {"host": "prefect.example.com", "origin": "https://prefect.example.com"}),
        ("GET", {"host": "127.0.0.1:4200", **LINK}),
        ("POST", {"host": "127.0.0.1:4200", **JSON_BODY}),
        ("POST", {"host": "127.0.0.1:4200", "origin": OWN, "content-type": "application/json; charset=utf-8"}),
        ("POST", {"host": "127.0.0.1:4200", "content-length": "0"}),
        ("DELETE", {"host": "127.0.0.1:4200"}),
    ],
)
async def test_what_our_pages_and_programs_send_is_passed_on(method: str, headers: dict[str, str]) -> None:
    start = (await send_to_guard(headers, method))[0]
    assert start["status"] == 200
    assert (b"content-security-policy", b"frame-ancestors 'none'") in start["headers"]


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (400, "GET", {}),
        (400, "GET", {"host": "evil.example"}),
        (400, "GET", {"host": "evil.example:4200", "sec-fetch-site": "same-origin"}),
        (400, "GET", {"host": "127.0.0.1.evil.example:4200"}),
        (400, "GET", {"host": "127.0.0.1:4200@evil.example"}),
        (400, "POST", {"host": "evil.example:4200", "origin": "http://evil.example:4200", **JSON_BODY}),
        (403, "GET", {"host": "127.0.0.1:4200", "origin": EVIL}),
        (403, "GET", {"host": "127.0.0.1:4200", "origin": "null"}),
        (403, "GET", {"host": "127.0.0.1:4200", "origin": ""}),
        (403, "GET", {"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:8888"}),
        (403, "GET", {"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:4200.evil.example"}),
        (403, "OPTIONS", {"host": "127.0.0.1:4200", "origin": EVIL}),
        (403, "POST", {"host": "127.0.0.1:4200", "origin": EVIL, **TEXT_BODY}),
        (403, "DELETE", {"host": "127.0.0.1:4200", "origin": EVIL}),
        (403, "GET", {"host": "127.0.0.1:4200", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        (403, "GET", {"host": "127.0.0.1:4200", **LINK, "sec-fetch-dest": "iframe"}),
        (403, "POST", {"host": "127.0.0.1:4200", **LINK, **FORM_BODY}),
        (415, "POST", {"host": "127.0.0.1:4200", **TEXT_BODY}),
        (415, "POST", {"host": "127.0.0.1:4200", "origin": OWN, **FORM_BODY}),
        (415, "PATCH", {"host": "127.0.0.1:4200", "content-length": "2"}),  # a Blob without a type
        (415, "PUT", {"host": "127.0.0.1:4200", "transfer-encoding": "chunked"}),
    ],
)
async def test_what_a_foreign_page_can_send_is_refused(status: int, method: str, headers: dict[str, str]) -> None:
    start, body = await send_to_guard(headers, method)
    assert start["status"] == status
    assert not [key for key, _ in start["headers"] if key.startswith(b"access-control")]
    assert json.loads(body["body"])["exception_message"].startswith("E-REQUEST-REFUSED")


async def test_two_hosts_or_origins_are_none() -> None:
    guard = Guard(echo, ORIGINS, format_refusal)
    for name, values in (("host", (b"127.0.0.1:4200", b"evil.example")), ("origin", (OWN.encode(), EVIL.encode()))):
        rows = [(name.encode(), value) for value in values]
        host_rows = rows if name == "host" else [(b"host", b"127.0.0.1:4200"), *rows]
        assert guard.refusal({"type": "http", "method": "GET", "headers": host_rows}) is not None


@pytest.mark.parametrize(
    ("accepted", "headers"),
    [
        (True, {"host": "127.0.0.1:4200"}),
        (True, {"host": "127.0.0.1:4200", "origin": OWN}),
        (False, {"host": "127.0.0.1:4200", "origin": EVIL}),
        (False, {"host": "evil.example:4200", "origin": "http://evil.example:4200"}),
    ],
)
async def test_a_websocket_is_judged_alike(accepted: bool, headers: dict[str, str]) -> None:
    (answer,) = await send_to_guard(headers, kind="websocket")
    assert answer["type"] == ("websocket.accept" if accepted else "websocket.close")


async def test_prefect_s_app_behind_the_guard_asks_for_the_string() -> None:
    """Prefect's real app, without a database: nothing that is refused needs one."""
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: AUTH, PREFECT_UI_ENABLED: False}):
        app = Guard(create_app(ignore_cache=True), ORIGINS, format_refusal)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as client:
        request = {"json": {}, "headers": auth_header("trainyard:another")}
        assert (await client.post("/api/deployments/filter", json={})).status_code == 401
        assert (await client.post("/api/deployments/filter", **request)).status_code == 401  # type: ignore[arg-type]
        right = auth_header(AUTH)
        assert (await client.get("/api/version", headers=right)).status_code == 200
        assert (await client.get("/api/version", headers={**right, "host": "evil.example"})).status_code == 400
        assert (await client.post("/api/flows/", content="{}", headers={**right, **TEXT_BODY})).status_code == 415


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
async def test_an_address_that_guesses_the_string_waits_and_this_machine_does_not(address: str) -> None:
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: AUTH, PREFECT_UI_ENABLED: False}):
        app = CountedCredentials(create_app(ignore_cache=True), WrongCredentials(3))

    async def ask(client: str, string: str) -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as asker:
            headers = auth_header(string) if string else {}
            return await asker.get("/api/version", headers=headers)

    for _ in range(5):
        assert (await ask(address, "")).status_code == 401, "none are not wrong ones"
    for number in range(3):
        assert (await ask(address, f"trainyard:{number}")).status_code == 401
    refused = await ask(address, AUTH)
    assert refused.status_code == 429
    assert refused.json()["exception_message"].startswith("E-RATE: 3 wrong credentials")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await ask("192.0.2.8", AUTH)).status_code == 200
    for number in range(9):
        assert (await ask("127.0.0.1", f"trainyard:{number}")).status_code == 401
    assert (await ask("127.0.0.1", AUTH)).status_code == 200


def test_a_run_asks_its_server_with_the_string() -> None:
    """Whether to pause or stop; also where a key of Prefect Cloud is in the environment, as in Prefect's own client."""
    with temporary_settings({PREFECT_API_AUTH_STRING: AUTH, PREFECT_API_KEY: "pnu_of_the_cloud"}):
        assert asker("http://127.0.0.1:1/api").headers["authorization"] == auth_header(AUTH)["Authorization"]
    with temporary_settings({PREFECT_API_KEY: "pnu_of_the_cloud"}):
        assert asker("http://127.0.0.1:2/api").headers["authorization"] == "Bearer pnu_of_the_cloud"
    asker.cache_clear()


# A real server


real = [pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]
FLOW = {"name": "made-by-an-attack"}
ATTACKS = """async ([api, flow]) => {
    const body = JSON.stringify(flow), found = {};
    const tried = async (name, url, options) => {
        try {
            const reply = await fetch(url, options);
            found[name] = reply.type == "opaque" ? "opaque" : `${reply.status} ${await reply.text()}`;
        } catch (error) { found[name] = "failed"; }
    };
    const json = {"Content-Type": "application/json"};
    await tried("read", `${api}/deployments/filter`, {method: "POST", headers: json, body: "{}"});
    await tried("get", `${api}/version`);
    await tried("json", `${api}/flows/`, {method: "POST", headers: json, body});
    await tried("text", `${api}/flows/`, {method: "POST", body});
    await tried("text, no answer wanted", `${api}/flows/`, {method: "POST", mode: "no-cors", body});
    await tried("without a type", `${api}/flows/`, {method: "POST", mode: "no-cors", body: new Blob([body])});
    await tried("beacon", `${api}/version`, {mode: "no-cors"});
    navigator.sendBeacon(`${api}/flows/`, body);
    const frame = document.createElement("iframe");
    frame.name = "sink";
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: `${api}/flows/`, enctype: "text/plain", target: "sink"});
    const field = document.createElement("input");
    Object.assign(field, {name: body.slice(0, -1) + ',"tags":["', value: '"]}'});
    form.append(field);
    document.body.append(form);
    form.submit();
    found.socket = await new Promise(done => {
        const socket = new WebSocket(`${api.replace("http", "ws")}/events/out`, "prefect");
        socket.onopen = () => done("open");
        socket.onerror = () => done("failed");
    });
    await new Promise(done => setTimeout(done, 1000));
    return found;
}"""


class Blank(BaseHTTPRequestHandler):
    """The page of an attacker; what it does is evaluated in it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body>hello</body></html>")

    def log_message(self, format: str, *arguments: object) -> None:
        return


class Open(Blank):
    """A server as Prefect's is by itself: every origin may read and write it. It notes which bodies came."""

    bodies: ClassVar[list[tuple[str, str]]] = []

    def do_OPTIONS(self) -> None:
        self.answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.bodies.append((self.headers.get("Content-Type", ""), body))
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        for name in ("Origin", "Headers", "Methods"):
            self.send_header(f"Access-Control-Allow-{name}", "*")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture(scope="module")
def home_settings() -> Iterator[Settings]:
    """A home that other users may enter, as far as the folder goes."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-attack-"))
    folder.chmod(0o755)
    yield Settings(home=folder, prefect_port=0)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(home_settings: Settings) -> Iterator[Service]:
    """A server as `trainyard up` starts it."""
    yield start_server(home_settings, lambda _: None)
    stop(home_settings, "server")


@pytest.fixture
def page() -> Iterator[Page]:
    executable = find_chromium()
    if executable is None:
        pytest.skip(MISSING)
    names = "--host-resolver-rules=MAP *.example 127.0.0.1"
    # Chromium's own protection of loopback, which other browsers lack, would hide what the server does.
    unprotected = "--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", names, unprotected])
        yield browser.new_page()
        browser.close()


def flows(server: Service, home_settings: Settings) -> list[str]:
    answer = httpx.post(
        f"{server.url}/flows/filter", json={}, headers=auth_header(read_auth(home_settings)), timeout=30
    )
    return [flow["name"] for flow in answer.raise_for_status().json()]


def attack_server(page: Page, api: str, address: str) -> tuple[dict[str, str], set[int]]:
    """What the page at `address` found out, and the statuses of the answers that the browser let through to it."""
    answers: set[int] = set()

    def note(response: Response) -> None:
        if response.url.startswith(api):
            answers.add(response.status)

    page.goto(address)
    page.on("response", note)
    outcomes: dict[str, str] = page.evaluate(ATTACKS, [api, FLOW])
    return outcomes, answers


class TestRealServer:
    pytestmark = real

    def test_the_string_is_for_the_home_s_owner(self, server: Service, home_settings: Settings) -> None:
        assert auth_file(home_settings).stat().st_mode & 0o777 == 0o600
        assert read_auth(home_settings)

    def test_a_request_without_the_string_is_refused(self, server: Service, home_settings: Settings) -> None:
        paths = ("deployments/filter", "flow_runs/filter", "block_documents/filter", "variables/filter")
        for path in paths:
            assert httpx.post(f"{server.url}/{path}", json={}, timeout=30).status_code == 401
            right = auth_header(read_auth(home_settings))
            assert httpx.post(f"{server.url}/{path}", json={}, headers=right, timeout=30).status_code == 200
        assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200

    @pytest.mark.parametrize(
        ("status", "headers"),
        [
            (400, {"host": "evil.example", "content-type": "application/json"}),
            (403, {"origin": EVIL, "content-type": "application/json"}),
            (415, {"content-type": "text/plain"}),
        ],
    )
    def test_the_string_alone_does_not_pass_the_guard(
        self, server: Service, home_settings: Settings, status: int, headers: dict[str, str]
    ) -> None:
        """A browser that a person is logged in with, made to send what the person does not want."""
        right = auth_header(read_auth(home_settings))
        answer = httpx.post(f"{server.url}/flows/", content=json.dumps(FLOW), headers=right | headers, timeout=30)
        assert answer.status_code == status
        assert FLOW["name"] not in flows(server, home_settings)

    def test_a_preflight_of_another_origin_allows_nothing(self, server: Service) -> None:
        headers = {"origin": EVIL, "access-control-request-method": "POST"}
        answer = httpx.options(f"{server.url}/flows/", headers=headers, timeout=30)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers

    def test_a_socket_with_the_string_stays_and_one_without_ends(
        self, server: Service, home_settings: Settings
    ) -> None:
        """Longer than a head may take, which every connection begins with. The silent one is open meanwhile."""
        address = f"{server.url.replace('http', 'ws')}/events/out"
        protocol: Any = ["prefect"]
        with connect(address, subprotocols=protocol) as right, connect(address, subprotocols=protocol) as silent:
            right.send(json.dumps({"type": "auth", "token": read_auth(home_settings)}))
            assert json.loads(right.recv(30)) == {"type": "auth_success"}
            with pytest.raises(ConnectionClosed):
                silent.recv(CREDENTIALS_S + 30)
            time.sleep(max(0.0, HEAD_S - CREDENTIALS_S) + 2)
            right.send(json.dumps({"type": "filter", "filter": {}}))
            with pytest.raises(TimeoutError):
                right.recv(2)
        with connect(address, subprotocols=protocol) as wrong:
            wrong.send(json.dumps({"type": "auth", "token": "trainyard:another"}))
            with pytest.raises(ConnectionClosed, match="Invalid token"):
                wrong.recv(30)

    def test_half_a_request_and_a_long_head_are_ended(self, server: Service) -> None:
        port = urlsplit(server.url).port or 0
        with socket.create_connection(("127.0.0.1", port), HEAD_S + 30) as half:
            half.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert half.recv(100).startswith(b"HTTP/1.1 408")
        with socket.create_connection(("127.0.0.1", port), 30) as long:
            long.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"a" * (MAX_HEAD_BYTES - 200))
            long.sendall(b"a" * 400)
            assert long.recv(100).startswith(b"HTTP/1.1 431")

    def test_a_socket_of_another_origin_is_refused(self, server: Service) -> None:
        address = f"{server.url.replace('http', 'ws')}/events/out"
        with pytest.raises(InvalidStatus, match="403"), connect(address, origin=EVIL, subprotocols=["prefect"]):  # type: ignore[list-item,arg-type]
            pytest.fail("the handshake succeeded")

    @pytest.mark.browser
    def test_a_page_of_another_origin_reads_and_creates_nothing(
        self, page: Page, server: Service, home_settings: Settings
    ) -> None:
        with serving(LoopbackServer(Blank)) as site:
            for address in (site.url.replace("127.0.0.1", "evil.example"), site.url):
                outcomes, answers = attack_server(page, server.url, address)
                assert set(outcomes.values()) == {"failed"}, outcomes
                assert answers <= {403}, "the guard refuses, before the string is asked for"
        assert FLOW["name"] not in flows(server, home_settings)

    @pytest.mark.browser
    def test_the_page_would_succeed_without_the_guard(self, page: Page) -> None:
        """The same page, and a server that believes it: what it sends would create a flow, in five ways."""
        with serving(LoopbackServer(Blank)) as site, serving(LoopbackServer(Open)) as victim:
            outcomes, _ = attack_server(page, f"{victim.url}/api", site.url.replace("127.0.0.1", "evil.example"))
        assert outcomes["read"].startswith("200")
        kinds = [kind for kind, body in Open.bodies if json.loads(body).get("name") == FLOW["name"]]
        assert len(kinds) >= 5, Open.bodies
        assert {"application/json", "text/plain;charset=UTF-8", "text/plain", ""} <= set(kinds)

    @pytest.mark.browser
    def test_a_name_of_the_attacker_s_that_leads_to_us_is_refused(
        self, page: Page, server: Service, home_settings: Settings
    ) -> None:
        """DNS rebinding: the page comes from the attacker, and then its own name leads to 127.0.0.1."""
        there = server.url.replace("127.0.0.1", "evil.example")
        page.route("**/start", lambda route: route.fulfill(body="<html><body></body></html>", content_type="text/html"))
        outcomes, answers = attack_server(page, there, there.replace("/api", "/start"))
        assert answers == {400}
        assert not [
            outcome for outcome in outcomes.values() if outcome.startswith("2") or outcome in ("open", "opaque")
        ], outcomes
        assert page.goto(there.replace("/api", "/dashboard")).status == 400  # type: ignore[union-attr]
        assert FLOW["name"] not in flows(server, home_settings)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
    def test_another_user_of_the_machine_gets_nothing(self, server: Service, home_settings: Settings) -> None:
        attempts = as_nobody(server, auth_file(home_settings))
        assert attempts["can enter the home"]
        assert attempts["string"] == "PermissionError"
        assert attempts["environment of the server"] == "PermissionError"
        assert attempts["creating a flow"] == 401
        assert FLOW["name"] not in flows(server, home_settings)

    def test_the_string_is_nowhere_but_in_its_file(self, server: Service, home_settings: Settings) -> None:
        text = (read_auth(home_settings) or "").encode()
        header = auth_header(text.decode())["Authorization"].removeprefix("Basic ").encode()
        files = [path for path in home_settings.home.rglob("*") if path.is_file() and path != auth_file(home_settings)]
        assert len(files) >= 3
        assert not [path for path in files if text in (content := path.read_bytes()) or header in content]


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_without_the_login_the_guard_stays() -> None:
    """`trainyard up --no-auth`, for a machine that one person uses."""
    server = start_server(settings(), lambda _: None, auth=False)
    try:
        body, json_type = json.dumps(FLOW), {"content-type": "application/json"}
        assert httpx.post(f"{server.url}/flows/filter", json={}, timeout=30).status_code == 200
        for status, headers in (
            (400, {"host": "evil.example", **json_type}),
            (403, {"origin": EVIL, **json_type}),
            (415, {"content-type": "text/plain"}),
        ):
            answer = httpx.post(f"{server.url}/flows/", content=body, headers=headers, timeout=30)
            assert answer.status_code == status
        assert FLOW["name"] not in flows(server, settings())
        (check,) = doctor.look_at_login(settings(), server.url)
        assert (check.ok, check.note) == (False, True)
        assert check.detail == "OPEN: every user of this machine can start runs (--no-auth)"
    finally:
        stop(settings(), "server")


AS_NOBODY = """
import encodings.idna, http.client, json, os, sys
secret, process, port, flow = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def tried(path):
    try:
        return open(path, "rb").read().decode()
    except OSError as error:
        return type(error).__name__
server = http.client.HTTPConnection("127.0.0.1", int(port))
server.request("POST", "/api/flows/", flow, {"Content-Type": "application/json"})
print(json.dumps({
    "can enter the home": os.listdir(os.path.dirname(secret)) != [],
    "string": tried(secret),
    "environment of the server": tried(f"/proc/{process}/environ"),
    "creating a flow": server.getresponse().status,
}))
"""


def as_nobody(server: Service, secret: Path) -> dict[str, Any]:
    """What user 65534 finds out."""
    argv = [
        sys.executable,
        "-c",
        AS_NOBODY,
        str(secret),
        str(server.pid),
        str(urlsplit(server.url).port),
        json.dumps(FLOW),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    attempts: dict[str, Any] = json.loads(done.stdout)
    return attempts
