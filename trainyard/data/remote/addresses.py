"""Addresses that a chain names: spelled plainly, and not inside this network (server-side request forgery).

A host name is resolved once for a connection, every address it has is judged, and the connection goes to the judged
address itself, so a name that changes its answer in between gains nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpcore

from trainyard.errors import Reason, Refused, Unavailable

SHOWN_CHARS = 300
NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
NAT64 = ipaddress.ip_network("64:ff9b::/96")
NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
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
Resolve = Callable[..., list[tuple[Any, ...]]]


def refused_error(url: str, because: str, instead: str) -> Refused:
    return Refused([Reason("R-URL", None, "config.url", f"{redact_url(url)!r} {because}.", instead)])


def redact_url(url: str) -> str:
    """Return an address for messages: one line without user, password and query, which may contain secrets."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    text = f"{parts.scheme}://{host}{port}{parts.path}"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


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
        raise refused_error(url, "is not an http or https address", plainly)
    if parts.username is not None or parts.password is not None or "@" in re.split(r"[/\\]", url, maxsplit=3)[2]:
        raise refused_error(url, "contains a user or a password, which a chain must not store", plainly)
    if re.search(r"[\s\\\x00-\x1f%]", parts.netloc):
        raise refused_error(url, "has a host with odd characters", plainly)
    if not host.isascii():
        raise refused_error(url, "has a host with letters outside ASCII", "Its ASCII form, which begins with xn--.")
    last = host.rstrip(".").rsplit(".", 1)[-1]
    if NUMBER.fullmatch(last) and ":" not in host and not is_plain_ipv4(host):
        raise refused_error(url, "spells a numeric host in an odd way (decimal, octal or hexadecimal)", plainly)
    return host, port


def is_plain_ipv4(host: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(host)) == host
    except ValueError:
        return False


def require_public(url: str, field: str, *, allowed: Iterable[str] = (), resolve: Resolve = socket.getaddrinfo) -> None:
    """Refuse an address that is spelled oddly, is not known, or leads into a private network. `field` is its field.

    Raises `Refused` (`R-URL`).
    """
    try:
        host, port = check_url(url)
        try:
            CheckedNetwork(allowed, resolve).addresses(host, port)
        except Unavailable as error:
            raise refused_error(url, "has a host that is not known here", "An address whose host is known.") from error
    except Refused as error:
        raise Refused([replace(reason, field=field) for reason in error.reasons]) from error


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
        """Return the host's addresses, all judged. Raises `Refused` (`R-URL`) and `Unavailable`."""
        try:
            addresses = list(dict.fromkeys(entry[4][0] for entry in self._resolve(host, port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            raise Unavailable(
                f"The host {host} is not known.", why=str(error), do="Correct the address or the network.",
                code="E-URL",
            ) from error  # fmt: skip
        private = [address for address in addresses if not is_public(address)]
        if private and host.lower() not in self._allowed:
            raise refused_error(
                f"http://[{host}]" if ":" in host else f"http://{host}",
                f"leads to {private[0]}, a private, local or metadata address",
                "A public address, or let the operator add the host to allow_private_urls.",
            )
        return addresses

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:  # fmt: skip
        *earlier, last = self.addresses(host, port)
        for address in earlier:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return self._network.connect_tcp(address, port, timeout, local_address, socket_options)
        return self._network.connect_tcp(last, port, timeout, local_address, socket_options)
