"""Addresses: private networks are not reached, by any spelling, redirect or change of DNS."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.reading import read_all, settings_for
from trainyard.data.readers.streams import Limits
from trainyard.data.remote.addresses import CheckedNetwork, check_url, is_public
from trainyard.data.remote.http import choose_name, fetch
from trainyard.errors import InvalidInput, LimitExceeded, NotFound, Refused, TrainyardError, Unavailable
from trainyard.spec.axes.data import Port
from trainyard.testing.loopback import LoopbackServer, serving

ROW = b'{"instruction": "Why?", "output": "Because."}\n'


class Pages(BaseHTTPRequestHandler):
    """A small site: data, redirects and failures."""

    def do_GET(self) -> None:
        path, _, argument = self.path.partition("?")
        if path == "/to":
            self.send_response(302)
            self.send_header("Location", argument)
            self.end_headers()
        elif path == "/loop":
            self.answer(301, b"", location="/loop")
        elif path == "/status":
            self.answer(int(argument), b"")
        elif path == "/drop":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
        elif path == "/data":
            self.answer(200, ROW, kind="application/jsonl; charset=utf-8")
        elif path == "/big.jsonl":
            self.answer(200, ROW * 1000)
        elif path == "/rows.jsonl.gz":
            self.answer(200, gzip.compress(ROW * 3))
        else:
            self.answer(200, ROW if path.endswith(".jsonl") else b"# Rails\n")

    def answer(self, status: int, body: bytes, *, kind: str = "text/plain", location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serving(LoopbackServer(Pages)) as server:
        yield server.url


def resolver(*addresses: str) -> Any:
    """A name service that gives these addresses for every name."""
    return lambda host, port, type: [(socket.AF_INET, type, 6, "", (address, port)) for address in addresses]


PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0",
    "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:a00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe", "192.0.0.192", "168.63.129.16", "64:ff9b:1::1", "fec0::1", "::127.0.0.1",
    "64:ff9b:1:a9fe:a9:fe00::", "::8.8.8.8", "::ffff:0:10.0.0.1", "100.100.100.200", "64:ff9b::169.254.169.254",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "168.63.129.17", "192.0.1.1",
    "64:ff9b::8.8.8.8",
]  # fmt: skip
"""Neighbours of private ones among them."""


@pytest.mark.parametrize("address", [*dict.fromkeys(PRIVATE), *PUBLIC])
def test_private_and_public_addresses_are_told_apart(address: str) -> None:
    assert is_public(address) == (address in PUBLIC)


ODD_NUMBERS = [
    "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/",
    "http://0x7f.1/", "http://010.0.0.1/", "http://127.0.0.1./", "http://134744072/", "http://1.2.3.4.5/",
]  # fmt: skip
PRIVATE_HOSTS = [
    "http://127.0.0.1:9/x", "http://localhost:9/x", "http://[::1]:9/x", "http://[::ffff:127.0.0.1]:9/x",
    "http://169.254.169.254/latest/meta-data/",
]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "why"),
    [
        *((url, "spells a numeric host in an odd way") for url in ODD_NUMBERS),
        *((url, "a private, local or metadata address") for url in PRIVATE_HOSTS),
    ],
)
def test_odd_numbers_and_private_hosts_are_refused(url: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=rf"R-URL config\.url: .* {why}"):
        fetch(url, tmp_path)


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("ftp://example.org/x", "is not an http or https address"),
        ("file:///etc/passwd", "is not an http or https address"),
        ("http:///x", "is not an http or https address"),
        ("http://user:pw@example.org/x", "contains a user or a password"),
        ("http://exa%6dple.org/x", "has a host with odd characters"),
        ("http://exam ple.org/x", "has a host with odd characters"),
        ("http://example.org:99999/x", "The address cannot be read: Port out of range"),
        ("http://[::1/x", "The address cannot be read"),
    ],
)
def test_odd_addresses_are_refused(url: str, because: str) -> None:
    with pytest.raises(Refused, match=rf"R-URL config\.url: .*{because}") as caught:
        check_url(url)
    assert "pw" not in str(caught.value)


def test_a_name_with_one_private_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"'http://data\.example' leads to 10\.0\.0\.1, a private"):
        fetch("http://data.example/x", tmp_path, resolve=resolver("8.8.8.8", "10.0.0.1"))


def test_the_connection_goes_to_the_address_that_was_judged() -> None:
    """A name server that answers once public and then private gets one question only."""
    answers = iter([["8.8.8.8"], ["127.0.0.1"]])
    hosts = []

    def rebinding(host: str, port: int, type: int) -> list[Any]:
        hosts.append(host)
        return resolver(*next(answers))(host, port, type)

    network = CheckedNetwork((), rebinding)
    assert network.addresses("data.example", 80) == ["8.8.8.8"]
    assert hosts == ["data.example"]
    with pytest.raises(Refused, match="R-URL"):
        network.addresses("data.example", 80)


def test_redirects_are_judged_again(site: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"leads to (127\.0\.0\.1|::1), a private"):
        fetch(f"{site}/to?http://localhost:1/x", tmp_path, allowed=["127.0.0.1"])
    with pytest.raises(Refused, match=r"leads to 169\.254\.169\.254"):
        fetch(f"{site}/to?http://169.254.169.254/latest", tmp_path, allowed=["127.0.0.1"])
    with pytest.raises(Refused, match=r"R-URL config\.url: .* is not an http or https address"):
        fetch(f"{site}/to?file:///etc/passwd", tmp_path, allowed=["127.0.0.1"])
    with pytest.raises(Refused, match="is reached only after more than 5 redirects"):
        fetch(f"{site}/loop", tmp_path, allowed=["127.0.0.1"])


def test_an_allowed_host_is_read_over_any_of_its_addresses(site: str, tmp_path: Path) -> None:
    port = site.rsplit(":", 1)[1]
    fetched = fetch(
        f"http://data.example:{port}/to?/rows.jsonl", tmp_path, allowed=["DATA.example"],
        resolve=resolver("127.0.0.2", "127.0.0.1") if port == "0" else resolver("127.0.0.1"),
    )  # fmt: skip
    assert (fetched.path.read_bytes(), fetched.name) == (ROW, "rows.jsonl")


def test_the_next_address_is_tried_when_one_does_not_answer(site: str, tmp_path: Path) -> None:
    """Nothing listens at 127.0.0.9."""
    port = site.rsplit(":", 1)[1]
    url = f"http://data.example:{port}/rows.jsonl"
    fetched = fetch(url, tmp_path, allowed=["data.example"], resolve=resolver("127.0.0.9", "127.0.0.1"))
    assert fetched.path.read_bytes() == ROW


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("/status?404", NotFound, "E-URL: .*/status answered with status 404"),
        ("/status?403", InvalidInput, "E-URL: .* status 403"),
        ("/status?503", Unavailable, "E-URL: .* status 503"),
        ("/status?429", Unavailable, "E-URL: .* status 429"),
        ("/drop", Unavailable, "E-URL: .* could not be read: RemoteProtocolError"),
    ],
)
def test_failing_servers(site: str, tmp_path: Path, path: str, kind: type[TrainyardError], message: str) -> None:
    with pytest.raises(kind, match=message):
        fetch(site + path, tmp_path, allowed=["127.0.0.1"])


def test_unreachable_and_unknown_hosts(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(Unavailable, match=r"E-URL: .* could not be read: ConnectError"):
            fetch(f"http://127.0.0.1:{port}/x", tmp_path, allowed=["127.0.0.1"])

    def unknown(host: str, port: int, type: int) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Unavailable, match=r"E-URL: The host data\.example is not known"):
        fetch("http://data.example/x", tmp_path, resolve=unknown)


def test_size_and_time_are_capped(site: str, tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded, match=r"E-URL: .* is larger than 1,000 bytes"):
        fetch(f"{site}/big.jsonl", tmp_path, allowed=["127.0.0.1"], limits=Limits(download=1000))
    with pytest.raises(LimitExceeded, match=r"E-URL: .* did not arrive in time"):
        fetch(f"{site}/big.jsonl", tmp_path, allowed=["127.0.0.1"], deadline_s=-1)


def test_names_of_addresses() -> None:
    assert choose_name("https://x.org/a/b.jsonl.gz?x=1", "") == "b.jsonl.gz"
    assert choose_name("https://x.org/a/b", "text/CSV; charset=utf-8") == "b.csv"
    assert choose_name("https://x.org/", "application/octet-stream") == "index"


@pytest.mark.parametrize(
    ("path", "port", "rows"),
    [("/rows.jsonl", Port.SFT, 1), ("/rows.jsonl.gz", Port.SFT, 3), ("/a.md", Port.DOCUMENTS, 1)],
)
def test_a_source_reads_an_address(site: str, tmp_path: Path, path: str, port: Port, rows: int) -> None:
    settings = settings_for(allow_private_urls=("127.0.0.1",))
    result = read_all(tmp_path / "out", settings, url=site + path)[port]
    assert len(result.rows) == rows
    assert result.rows[0].source.startswith(path[1:])
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == [port.value]


def test_a_type_that_only_the_server_knows_needs_a_format(site: str, tmp_path: Path) -> None:
    settings = settings_for(allow_private_urls=("127.0.0.1",))
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: .* Do: Give format: alpaca"):
        read_all(tmp_path / "one", settings, url=f"{site}/data")
    assert Port.SFT in read_all(tmp_path / "two", settings, url=f"{site}/data", format="alpaca")
