"""The service beyond loopback, as a process: TLS, names, proxies; nobody gets in without them."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.api_process import serving
from tests.certificates import make_certificate
from trainyard.serve.listening import is_loopback
from trainyard.settings import settings
from trainyard.stores.secret_files import TokenFile

pytestmark = pytest.mark.integration

TOKENS = "/api/v1/tokens"


def find_outside_address() -> str:
    """An address of this machine besides loopback."""
    rows = [row for each in psutil.net_if_addrs().values() for row in each if row.family == socket.AF_INET]
    address = next((row.address for row in rows if not is_loopback(row.address)), None)
    if address is None:
        pytest.skip("this machine has no address besides loopback")
    return address


def test_tls_beyond_loopback_and_plain_on_it(home: Path, tmp_path: Path) -> None:
    address = find_outside_address()
    certificate, key = make_certificate(tmp_path, address, "lab.example.org")
    token = TokenFile(home).create("ci", "admin", "", 1)
    context = ssl.create_default_context(cafile=str(certificate))
    options = ("--host", address, "--tls-cert", str(certificate), "--tls-key", str(key))
    with serving(*options) as port, httpx.Client(verify=context, base_url=f"https://{address}:{port}") as client:
        right = {"authorization": f"Bearer {token}"}
        assert client.get("/health").status_code == 200
        assert client.get(TOKENS).status_code == 401
        answer = client.get(TOKENS, headers=right)
        assert answer.status_code == 200
        assert "max-age" in answer.headers["strict-transport-security"]
        for host, status in (("lab.example.org", 200), ("evil.example", 400), (f"{address}.evil.example", 400)):
            assert client.get("/health", headers={"host": host}).status_code == status
        origin = f"https://{address}:{port}"
        assert client.get("/health", headers={"origin": origin}).status_code == 200
        assert client.get("/health", headers={"origin": origin.replace("https", "http")}).status_code == 403
        login = client.post("/api/v1/login", json={"token": token})
        assert "Secure" in login.headers["set-cookie"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{address}:{port}/health", timeout=60)
        assert httpx.get(f"http://127.0.0.1:{port}{TOKENS}", headers=right).status_code == 200
        assert "strict-transport-security" not in httpx.get(f"http://127.0.0.1:{port}/health").headers


def test_a_proxy_is_believed_and_others_are_not_answered(home: Path) -> None:
    address = find_outside_address()
    token = TokenFile(home).create("ci", "read", "", 1)
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.5", "host": "lab.example.org"}
    options = ("--behind-proxy", address, "--host", address, "--allow-host", "lab.example.org")
    with serving(*options) as port, httpx.Client(base_url=f"http://{address}:{port}", headers=forwarded) as proxy:
        login = proxy.post("/api/v1/login", json={"token": token})
        assert login.status_code == 200
        assert "Secure" in login.headers["set-cookie"]
        assert proxy.get("/health", headers={"origin": "https://lab.example.org"}).status_code == 200
        assert proxy.get("/health", headers={"origin": "http://lab.example.org"}).status_code == 403
        for number in range(11):
            proxy.get(TOKENS, headers={"authorization": f"Bearer guess-{number}"})
        other = {"authorization": "Bearer guess", "x-forwarded-for": "203.0.113.6"}
        assert proxy.get(TOKENS, headers={"authorization": "Bearer guess"}).status_code == 429
        assert proxy.get(TOKENS, headers=other).status_code == 401
        # Not the proxy: what it says of itself is not believed.
        loopback = {"authorization": "Bearer x", "x-forwarded-for": "203.0.113.5", "x-forwarded-proto": "https"}
        assert httpx.get(f"http://127.0.0.1:{port}{TOKENS}", headers=loopback).status_code == 401
    with serving("--behind-proxy", "192.0.2.250", "--host", address) as port:
        answer = httpx.get(f"http://{address}:{port}/health", headers={"x-forwarded-for": "127.0.0.1"})
        assert (answer.status_code, answer.json()["code"]) == (403, "E-REQUEST-REFUSED")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--host", "0.0.0.0"), "E-PARAMETER: The server does not listen on 0.0.0.0 without TLS."),
        (("--host", "0.0.0.0", "--no-auth"), "E-AUTH: The server does not listen on 0.0.0.0 with --no-auth."),
    ],
)
def test_it_does_not_start_where_others_could_use_it(options: tuple[str, ...], expected: str) -> None:
    argv = [sys.executable, "-m", "trainyard", "serve", "--role", "training", "--port", "0", *options]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 5
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_without_authentication_it_says_so(home: Path) -> None:
    with serving("--no-auth") as port:
        assert httpx.get(f"http://127.0.0.1:{port}{TOKENS}").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}{TOKENS}", headers={"host": "evil.example"}).status_code == 400
        assert settings().home == home
