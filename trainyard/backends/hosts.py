"""Several hosts: which of them this one is, where they meet, and whether their names resolve. Imports no torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil

from trainyard.errors import InvalidInput
from trainyard.spec.training import LaunchSettings

DEFAULT_PORT = 29_500
"""Of the first host of `launch.hosts`, as torchrun's."""
RANK_VARIABLE = "TRAINYARD_NODE_RANK"
"""The number of this host in `launch.hosts`, where its names do not say."""


@dataclass(frozen=True)
class Place:
    """This host among those of a launch."""

    node_rank: int
    host: str
    port: int


def find_place(launch: LaunchSettings) -> Place:
    """Return the place of this host. Raises `InvalidInput` (`E-LAUNCH`) for one that is not among them."""
    if not launch.hosts:
        host, _, port = (launch.rendezvous or "").partition(":")
        return Place(launch.node_rank or 0, host, int(port))
    return Place(find_own_number(launch.hosts), launch.hosts[0], DEFAULT_PORT)


def find_own_number(hosts: tuple[str, ...]) -> int:
    """Return the number of this host by its name or one of its addresses. Raises `InvalidInput` (`E-LAUNCH`)."""
    if RANK_VARIABLE in os.environ:
        return int(os.environ[RANK_VARIABLE])
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    names = {socket.gethostname(), socket.getfqdn()}
    for number, host in enumerate(hosts):
        if host in names or own & resolve(host):
            return number
    raise InvalidInput(
        f"This host, {socket.gethostname()}, is none of {', '.join(hosts)}.",
        do=f"Name it in launch.hosts, or set {RANK_VARIABLE} to its number.",
        code="E-LAUNCH",
    )


def resolve(host: str) -> set[str]:
    """Return the addresses of a host. Raises `InvalidInput` (`E-LAUNCH`) where there is none."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InvalidInput(
            f"The host {host!r} does not resolve: {error}.",
            do="Correct its name in launch, or add it to DNS or /etc/hosts.",
            code="E-LAUNCH",
        ) from error


def require_hosts(launch: LaunchSettings) -> None:
    """Raise `InvalidInput` (`E-LAUNCH`) for a host that does not resolve, by its name."""
    for host in launch.hosts or (find_place(launch).host,):
        resolve(host)
