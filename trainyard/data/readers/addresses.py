"""Files from http(s) addresses, without reaching into private networks (server-side request forgery).

A host name is resolved once, every address it has is judged, and the connection goes to the judged address itself, so
a name that changes its answer in between gains nothing. Each redirect is a new address and is judged again.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpcore

from trainyard.data.readers.streams import Limits
from trainyard.errors import InvalidInput, LimitExceeded, NotFound, Reason, Refused, TrainyardError, Unavailable

MAX_REDIRECTS, SHOWN_CHARS = 5, 300
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, DEADLINE_S = 10.0, 30.0, 3600.0
REDIRECTS = {301, 302, 303, 307, 308}
NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
NAT64 = ipaddress.ip_network("64:ff9b::/96")
NOT_PUBLIC = tuple(
    ipaddress.ip_network(one)
    for one in (
        "192.0.0.0/24",  # protocol assignments (RFC 6890); 192.0.0.192 answers with metadata in Oracle's cloud
        "168.63.129.16/32",  # the wire server of every machine in Azure
        "192.88.99.0/24",  # relays of 6to4, given up (RFC 7526)
        "64:ff9b:1::/48",  # local NAT64 (RFC 8215): leads to whatever its operator maps
        "::/96",  # addresses with an IPv4 address inside, given up (RFC 4291)
        "::ffff:0:0:0/96",  # IPv4-translated (RFC 2765)
        "fec0::/10",  # site-local (RFC 3879)
        "5f00::/16",  # segment routing (RFC 9602)
        "3fff::/20",  # documentation (RFC 9637)
    )
)
"""Networks that Python's tables call global, or are too old to know."""
SUFFIX_OF_TYPE = {
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
    "application/json": ".json",
    "application/vnd.apache.parquet": ".parquet",
    "text/csv": ".csv",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/pdf": ".pdf",
}
UNANSWERED = (
    httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol,
    ssl.SSLError, ValueError,  # a header that is not a number, or a redirect to an invalid address
)  # fmt: skip
"""How a request ends that brings no answer."""
Resolve = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Fetched:
    """A file that was fetched, and the name that its address or its type gives it."""

    path: Path
    name: str


def refused(url: str, because: str, instead: str) -> Refused:
    return Refused([Reason("R-URL", None, "config.url", f"{shown(url)!r} {because}.", instead)])


def shown(url: str) -> str:
    """Return an address for messages: one line without user, password and query, which may contain secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    text = f"{parts.scheme}://{host}{port}{parts.path}"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def sent(url: str) -> str:
    """A checked address as it is asked for: other letters than ASCII in escapes (RFC 3986), no fragment."""
    parts = urlsplit(url)
    safe = "/%:@!$&'()*+,;=~?-._"
    path, query = (quote(part, safe=safe, errors="replace") for part in (parts.path or "/", parts.query))
    return f"{parts.scheme}://{parts.netloc}{path}{f'?{query}' if query else ''}"


def check_url(url: str) -> tuple[str, int]:
    """Host and port of an address that is spelled plainly. Raises `Refused` (`R-URL`)."""
    plainly = "An address such as https://example.org/data.jsonl."
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise Refused(
            [Reason("R-URL", None, "config.url", f"The address cannot be read: {error}.", plainly)]
        ) from error
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise refused(url, "is not an http or https address", plainly)
    if parts.username is not None or parts.password is not None or "@" in re.split(r"[/\\]", url, maxsplit=3)[2]:
        raise refused(url, "contains a user or a password, which a chain must not store", plainly)
    if re.search(r"[\s\\\x00-\x1f%]", parts.netloc):
        raise refused(url, "has a host with odd characters", plainly)
    if not host.isascii():
        raise refused(url, "has a host with letters outside ASCII", "Its ASCII form, which begins with xn--.")
    last = host.rstrip(".").rsplit(".", 1)[-1]
    if NUMBER.fullmatch(last) and ":" not in host and not is_plain_ipv4(host):
        raise refused(url, "spells a numeric host in an odd way (decimal, octal or hexadecimal)", plainly)
    return host, port


def is_plain_ipv4(host: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def require_public(url: str, place: str, *, allowed: Iterable[str] = (), resolve: Resolve = socket.getaddrinfo) -> None:
    """Refuse an address that is spelled oddly, is not known, or leads into a private network. `place` is its field.

    Raises `Refused` (`R-URL`).
    """
    try:
        host, port = check_url(url)
        try:
            CheckedNetwork(allowed, resolve).addresses(host, port)
        except Unavailable as error:
            raise refused(url, "has a host that is not known here", "An address whose host is known.") from error
    except Refused as error:
        raise Refused([replace(one, field=place) for one in error.reasons]) from error


def is_public(address: str) -> bool:
    """Whether an IP address is on the public internet, looking through addresses that embed another one."""
    ip = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in NAT64:
            inner = ipaddress.IPv4Address(ip.packed[-4:])
        if inner is not None:
            return is_public(str(inner))
    if any(ip in network for network in NOT_PUBLIC if network.version == ip.version):
        return False
    return ip.is_global and not ip.is_multicast


class CheckedNetwork(httpcore.NetworkBackend):
    """Connects only to addresses that were judged."""

    def __init__(self, allowed: Iterable[str], resolve: Resolve = socket.getaddrinfo) -> None:
        self._allowed = {host.lower() for host in allowed}
        self._resolve = resolve
        self._network = httpcore.SyncBackend()

    def addresses(self, host: str, port: int) -> list[str]:
        """The host's addresses, all judged. Raises `Refused` (`R-URL`) and `Unavailable`."""
        try:
            found = list(dict.fromkeys(entry[4][0] for entry in self._resolve(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            raise Unavailable(
                f"The host {host} is not known.", why=str(error), do="Correct the address or the network.",
                code="E-URL",
            ) from error  # fmt: skip
        private = [address for address in found if not is_public(address)]
        if private and host.lower() not in self._allowed:
            raise refused(
                f"http://[{host}]" if ":" in host else f"http://{host}",
                f"leads to {private[0]}, a private, local or metadata address",
                "A public address, or let the operator add the host to allow_private_urls.",
            )
        return found

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:  # fmt: skip
        *others, last = self.addresses(host, port)
        for address in others:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return self._network.connect_tcp(address, port, timeout, local_address, socket_options)
        return self._network.connect_tcp(last, port, timeout, local_address, socket_options)


def fetch(
    url: str,
    folder: Path,
    *,
    allowed: Iterable[str] = (),
    limits: Limits = Limits(),  # noqa: B008 - frozen
    resolve: Resolve = socket.getaddrinfo,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Fetched:
    """Fetch a file into `folder`. `progress` gets bytes so far and in all (0 if the server does not say).

    Raises `Refused` (`R-URL`), `NotFound` (`E-URL`), `Unavailable` (`E-URL`) and
    `LimitExceeded` (`E-URL`).
    """
    network = CheckedNetwork(allowed, resolve)
    deadline = time.monotonic() + deadline_s

    def spend(url: str, done: int, size: int) -> None:
        if max(done, size) > limits.download:
            what = f"{shown(url)} is larger than {limits.download:,} bytes."
            raise LimitExceeded(what, do="Give a smaller file, or a path.", code="E-URL")
        if time.monotonic() > deadline:
            what = f"{shown(url)} did not arrive in time; {done:,} bytes did."
            raise LimitExceeded(what, do="Try again, or give a file.", code="E-URL")
        progress(done, size)

    with httpcore.ConnectionPool(network_backend=network, ssl_context=ssl.create_default_context()) as pool:
        for _ in range(MAX_REDIRECTS + 1):
            check_url(url)
            url = sent(url)
            try:
                target = follow(pool, url, folder, spend)
            except TrainyardError:  # some of these are ValueErrors, too
                raise
            except UNANSWERED as error:
                raise Unavailable(
                    f"{shown(url)} could not be read: {type(error).__name__} {error}".rstrip() + ".",
                    do="Try again later, or give a file.",
                    code="E-URL",
                ) from error
            if isinstance(target, Fetched):
                return target
            url = target
    raise refused(url, f"is reached only after more than {MAX_REDIRECTS} redirects", "The final address.")


def follow(
    pool: httpcore.ConnectionPool, url: str, folder: Path, spend: Callable[[str, int, int], None]
) -> Fetched | str:
    """One request: the file, or the address of a redirect. `spend` is called with bytes so far and in all."""
    timeouts = {"connect": CONNECT_TIMEOUT_S, "read": READ_TIMEOUT_S, "write": READ_TIMEOUT_S, "pool": READ_TIMEOUT_S}
    headers: Mapping[bytes | str, bytes | str] = {
        "Host": urlsplit(url).netloc,
        "Accept-Encoding": "identity",
        "User-Agent": "trainyard",
    }
    with pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in REDIRECTS and given.get("location"):
            return urljoin(url, given["location"])
        if (status := response.status) != 200:
            kind = Unavailable if status >= 500 or status == 429 else NotFound if status in (404, 410) else InvalidInput
            do = "Correct the address; a login is not supported."
            raise kind(f"{shown(url)} answered with status {status}.", do=do, code="E-URL")
        size = int(length) if re.fullmatch(r"[0-9]{1,18}", length := given.get("content-length", "")) else 0
        done = 0
        path = folder / "fetched"
        with path.open("wb") as stream:
            for part in response.iter_stream():
                done += len(part)
                spend(url, done, size)
                stream.write(part)
        return Fetched(path, name_of(url, given.get("content-type", "")))


def name_of(url: str, content_type: str) -> str:
    """File name of an address; the content type gives the extension where the address has none."""
    name = PurePosixPath(urlsplit(url).path).name or "index"
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    return name if PurePosixPath(name).suffix else name + SUFFIX_OF_TYPE.get(kind, "")
