"""With which string and for which origins `up` starts the server, and what an operator may say about it."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest

from tests.unit.app.stack.test_stack import make_record
from trainyard.app import services as stack
from trainyard.app.access import access
from trainyard.app.stack import doctor
from trainyard.app.stack.stack import EnvOutput
from trainyard.errors import Conflict, InvalidInput, Unavailable
from trainyard.operations.stack import env_text
from trainyard.settings import PREFECT_KEYS, settings
from trainyard.stores.auth_string import CLIENT_VARIABLE, SERVER_VARIABLE, keep_auth, read_auth
from trainyard.testing.loopback import LoopbackServer, serving

URL = "http://127.0.0.1:4200/api"
MINE = "admin:correct-horse"


class Locked(BaseHTTPRequestHandler):
    """Answers as Prefect does: 200 to those who know `MINE`, and to those who ask for its health."""

    def do_GET(self) -> None:
        expected_header = f"Basic {base64.b64encode(MINE.encode()).decode()}"
        is_allowed = self.headers.get("Authorization") == expected_header or self.path == "/api/health"
        self.send_response(200 if is_allowed else 401)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        return


class Unlocked(Locked):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def locked() -> Iterator[str]:
    """The address of a server of this home that asks for `MINE`; its process is this one."""
    with serving(LoopbackServer(Locked)) as running:
        make_record(settings(), "server", f"{running.url}/api")
        yield f"{running.url}/api"


@pytest.fixture
def unlocked() -> Iterator[str]:
    with serving(LoopbackServer(Unlocked)) as running:
        make_record(settings(), "server", f"{running.url}/api")
        yield f"{running.url}/api"


def test_a_server_gets_the_home_s_string_and_its_own_origins() -> None:
    variables = access.server_variables(settings(), URL)
    assert variables[SERVER_VARIABLE] == read_auth(settings())
    assert variables[access.ORIGINS_VARIABLE] == "http://127.0.0.1:4200,http://localhost:4200"
    assert variables["PREFECT_SERVER_DATABASE_TIMEOUT"] == "60"


def test_without_auth_the_string_is_kept_for_later() -> None:
    """A run that was started now may live until the server is started with it."""
    assert SERVER_VARIABLE not in access.server_variables(settings(), URL, auth=False)
    assert read_auth(settings())


def test_what_an_operator_sets_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    operator_variables = {
        SERVER_VARIABLE: MINE,
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": "https://prefect.example.com, http://127.0.0.1:9999",
        "PREFECT_SERVER_DATABASE_TIMEOUT": "5",
        "PREFECT_SERVER_CORS_ALLOWED_METHODS": "GET",
        "PREFECT_SERVER_API_PORT": "4200",
    }
    for name, value in operator_variables.items():
        monkeypatch.setenv(name, value)
    variables = access.server_variables(settings(), URL)
    assert variables[SERVER_VARIABLE] == MINE == read_auth(settings())
    assert variables[access.ORIGINS_VARIABLE].split(",")[2:] == ["https://prefect.example.com", "http://127.0.0.1:9999"]
    assert "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS" not in variables
    assert variables["PREFECT_SERVER_DATABASE_TIMEOUT"] == "5"
    assert variables["PREFECT_SERVER_CORS_ALLOWED_METHODS"] == "GET"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PREFECT_SERVER_API_PORT", "1", "set TRAINYARD_PREFECT_PORT=1"),
        ("PREFECT_SERVER_API_HOST", "0.0.0.0", "starts its server with 127.0.0.1"),
        ("PREFECT_SERVER_API_BASE_PATH", "/v2", "starts its server with /api"),
        ("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "*", "Every page that you open could start runs"),
        ("PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS", "https://a.example,null", "'null' is not a valid origin"),
        ("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", "https://a.example/", "is not a valid origin"),
    ],
)
def test_what_contradicts_is_refused(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=rf"E-PREFECT-VARIABLE: {name} cannot be .*{message}"):
        access.server_variables(settings(), URL)


def test_a_string_and_no_auth_contradict_and_the_string_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, MINE)
    with pytest.raises(InvalidInput, match=r"E-PREFECT-VARIABLE: .*--no-auth") as refused:
        access.server_variables(settings(), URL, auth=False)
    assert MINE not in str(refused.value)


def test_only_the_home_s_own_server_is_told_the_string(monkeypatch: pytest.MonkeyPatch) -> None:
    text = keep_auth(settings())
    make_record(settings(), "server", URL)
    assert stack.prefect_environment(settings(), URL)[CLIENT_VARIABLE] == text
    assert CLIENT_VARIABLE not in stack.prefect_environment(settings(), "http://elsewhere:4200/api")
    monkeypatch.setenv(SERVER_VARIABLE, text)
    assert SERVER_VARIABLE not in stack.service_environment(settings(), URL), "a worker sends it and asks nobody for it"
    assert {CLIENT_VARIABLE, SERVER_VARIABLE} <= set(PREFECT_KEYS)


def test_a_string_that_the_server_does_not_know_is_told(locked: str) -> None:
    keep_auth(settings())
    with pytest.raises(Unavailable, match=r"E-AUTH: .*does not accept the string in .*prefect-auth-string"):
        stack.require_api_url(settings())
    with pytest.raises(Unavailable, match="E-AUTH"):
        stack.check_login(settings(), locked, print, auth=True)
    keep_auth(settings(), MINE)
    assert stack.require_api_url(settings()) == locked
    assert stack.check_login(settings(), locked, print, auth=True)


def test_a_server_that_runs_keeps_how_it_was_started(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_auth(settings(), MINE)
    with pytest.raises(Conflict, match="E-SERVER-RUNS: --no-auth has no effect"):
        stack.check_login(settings(), locked, print, auth=False)
    monkeypatch.setenv(SERVER_VARIABLE, "admin:another-one")
    with pytest.raises(Conflict, match=r"E-SERVER-RUNS: .*asks for another string") as refused:
        stack.check_login(settings(), locked, print, auth=True)
    assert MINE not in str(refused.value)
    assert "another-one" not in str(refused.value)


def test_no_auth_is_not_for_another_s_server(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", locked.replace("127.0.0.1", "localhost"))
    with pytest.raises(InvalidInput, match="E-AUTH: --no-auth has no effect on the server at http://localhost"):
        stack.find_attached_server(settings(), auth=False)
    assert stack.find_attached_server(settings(), auth=True) == locked.replace("127.0.0.1", "localhost")


def test_an_open_server_is_told_by_up_and_by_the_doctor(unlocked: str) -> None:
    messages: list[str] = []
    assert not stack.check_login(settings(), unlocked, messages.append, auth=True)
    assert "every user of this machine can start runs" in messages[0]
    (check,) = doctor.look_at_login(settings(), unlocked)
    assert not check.ok
    assert not check.note, "it was not asked for"
    assert check.detail.startswith("OPEN")


def test_the_doctor_says_who_can_open_the_server(locked: str) -> None:
    keep_auth(settings(), MINE)
    (check,) = doctor.look_at_login(settings(), locked)
    assert check.ok
    assert "prefect-auth-string" in check.detail
    assert MINE not in check.detail


def test_the_doctor_says_what_other_users_can_read(home: Path) -> None:
    keep_auth(settings())
    home.chmod(0o755)
    assert [(check.name, check.ok) for check in doctor.look_at_readers(settings())] == [
        ("home", False), ("login text", True)
    ]  # fmt: skip
    home.chmod(0o700)
    assert all(check.ok for check in doctor.look_at_readers(settings()))


def test_the_doctor_says_what_other_machines_can_reach(home: Path) -> None:
    """A process of this home, as far as its command and its environment tell, that listens everywhere."""
    listening = "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", f"{listening}; sys.stdin.read()", "trainyard"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        (check,) = doctor.look_at_listeners(settings())
        assert f"0.0.0.0:{port}" in check.detail
        assert not check.ok
    finally:
        child.communicate("")
    assert psutil.pid_exists(child.pid) is False
    assert doctor.look_at_listeners(settings())[0].ok


def test_env_quotes_for_a_shell() -> None:
    text = env_text(EnvOutput(variables={CLIENT_VARIABLE: "a:$HOME`id`"}))
    done = subprocess.run(
        ["sh", "-c", f'{text}\nprintf %s "${CLIENT_VARIABLE}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == "a:$HOME`id`"
