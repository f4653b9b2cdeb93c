"""Names of servers in a chain: judged at each connection, so that a name that leads elsewhere later gains nothing."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.certificates import make_certificate
from trainyard.app.plan.refusals import check_servers
from trainyard.errors import Refused
from trainyard.serve.client.client import ChatClient, ServerUnreachable
from trainyard.serve.client.hosts import JudgedResolver, JudgedTransport
from trainyard.serve.targets.calling import http_client
from trainyard.settings import load_settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import resolve
from trainyard.spec.nodes import Target

HELLO = [{"role": "user", "content": "Hello"}]
BODY = b'{"choices": [{"message": {"content": "ok"}}]}'


class Server(HTTPServer):
    """Answers every request with `BODY`; `hosts` are the Host headers that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.hosts = list[str]()


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server)
        self.server.hosts.append(str(self.headers["host"]))
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, format: str, *args: Any) -> None:
        """A test's output is its own."""


@contextmanager
def answering(certificate: tuple[Path, Path] | None = None) -> Iterator[Server]:
    with Server() as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Records:
    """The records of a name: each lookup gives the next answer, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.hosts = list(answers), list[str]()

    def __call__(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.hosts.append(host)
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(None, None, None, "", (address, port)) for address in addresses]


async def ask(url: str, private: Sequence[str] | None) -> str:
    async with ChatClient(url, "m", retries=0, timeout_s=20, private_hosts=private) as client:
        return (await client.complete(HELLO)).text


async def test_a_name_inside_this_network_is_the_operators() -> None:
    with answering() as server:
        url = f"http://localhost:{server.server_port}"
        with pytest.raises(Refused, match=r"R-URL base_url: .*leads to .*add the host to allow_private_urls"):
            await ask(url, [])
        assert server.hosts == []
        assert await ask(url, ["localhost"]) == "ok"
        assert await ask(url, None) == "ok"
        assert await ask(f"http://127.0.0.1:{server.server_port}", []) == "ok"  # no lookup: it leads nowhere else later
    assert server.hosts[0] == f"localhost:{server.server_port}"


@pytest.mark.parametrize("spelling", ["2130706433", "0x7f000001", "127.1", "0"])
async def test_an_odd_spelling_of_this_machine_is_a_name(spelling: str) -> None:
    with answering() as server:
        with pytest.raises((Refused, ServerUnreachable)):
            await ask(f"http://{spelling}:{server.server_port}", ["localhost"])
        assert server.hosts == []


async def test_a_name_that_leads_elsewhere_later_is_refused() -> None:
    """It was public when the API got the chain."""
    resolver = JudgedResolver([], Records(["8.8.8.8"], ["169.254.169.254"], ["8.8.8.8", "10.0.0.1"], ["::1"]))
    assert [record["host"] for record in await resolver.resolve("rebound.example", 443)] == ["8.8.8.8"]
    for _ in range(3):
        with pytest.raises(Refused, match="R-URL"):
            await resolver.resolve("rebound.example", 443)


async def test_a_name_that_is_not_known_is_a_server_that_is_not_there() -> None:
    with pytest.raises(ServerUnreachable, match="no-such-host"):
        await ask("http://no-such-host.invalid", [])


def test_a_target_is_judged_at_each_connection() -> None:
    records = Records(["8.8.8.8"], ["127.0.0.1"])
    with answering() as server, httpx.Client(transport=JudgedTransport([], records)) as client:
        url = f"http://rebound.example:{server.server_port}/v1/load_lora_adapter"
        with pytest.raises((httpx.ConnectError, httpx.ConnectTimeout)):  # nobody answers there
            client.post(url, json={}, timeout=0.01)
        with pytest.raises(Refused, match="R-URL"):
            client.post(url, json={})
    assert server.hosts == []
    assert records.hosts == ["rebound.example"] * 2


def test_a_target_of_the_operators_is_asked_by_its_name() -> None:
    """The next address is tried where nobody listens at the first one."""
    records = Records(["127.0.0.2", "127.0.0.1"])
    with answering() as server, httpx.Client(transport=JudgedTransport(["gpu-box.lan"], records)) as client:
        assert client.post(f"http://gpu-box.lan:{server.server_port}/", json={}).content == BODY
    assert server.hosts == [f"gpu-box.lan:{server.server_port}"]


def test_the_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path, "gpu-box.lan")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    for name, fits in (("gpu-box.lan", True), ("other.lan", False)):
        with answering(certificate) as server, httpx.Client(
            transport=JudgedTransport([name], Records(["127.0.0.1"]))
        ) as client:  # fmt: skip
            url = f"https://{name}:{server.server_port}/"
            if fits:
                assert client.post(url, json={}).content == BODY
            else:
                with pytest.raises(httpx.ConnectError, match=r"CERTIFICATE_VERIFY_FAILED.*other\.lan"):
                    client.post(url, json={})


def test_which_names_are_the_operators(home: Path) -> None:
    settings_here = load_settings(
        home=home, allow_private_urls=["data.internal"], endpoints={"house": {"base_url": "http://GPU-box.lan:8000/v1"}}
    )
    assert settings_here.private_hosts == ("data.internal", "gpu-box.lan", "localhost")
    with answering() as server:
        target = Target(type=TargetType.VLLM, url=f"http://localhost:{server.server_port}")
        with http_client(target, str(target.url), settings_here) as client:
            assert client.post("/v1/load_lora_adapter", json={}).content == BODY


def test_a_client_in_a_thread_of_its_own() -> None:
    """As a training child asks: one event loop for each batch of prompts."""
    with answering() as server:
        assert asyncio.run(ask(f"http://localhost:{server.server_port}", ("localhost",))) == "ok"


@pytest.mark.parametrize(
    ("host", "codes"), [("localhost", []), ("127.0.0.1", []), ("127.1", ["R-URL"]), ("unknown.invalid", [])]
)
def test_check_refuses_what_a_run_would_not_connect_to(host: str, codes: list[str], home: Path) -> None:
    """Here an odd spelling of this machine: a name that leads to it and is not the operator's."""
    generator = {"engine": "openai", "model": "m", "base_url": f"http://{host}:1/v1"}
    nodes = [{"type": "data_source", "config": {"path": "a.md"}}, {"type": "ai_generator", "config": generator}]
    chain = resolve(ChainSpec.model_validate({"name": "asks", "nodes": nodes}))
    refusals = check_servers(chain, load_settings(home=home))
    assert [(refusal.code, refusal.field) for refusal in refusals] == [(code, "config.base_url") for code in codes]
