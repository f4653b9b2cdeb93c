"""Names of servers that a chain contains: each is looked up for a connection, judged, and that address is connected to.

Over a network the API refuses addresses inside this network when it gets a chain. Who controls a name's records can
let the name lead elsewhere afterwards (DNS rebinding), so a connection judges it again. A name that leads to a private,
local or metadata address has to be the operator's: `localhost`, the host of an endpoint, or one of
`allow_private_urls` (`Settings.private_hosts`). A numeric address leads nowhere else later, and is connected to as it
is.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import replace

from trainyard.data.remote.addresses import CheckedNetwork, Resolve
from trainyard.errors import Refused, Unavailable

FIELD = "base_url"


def is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


class JudgedHosts:
    """Looks names up. `private` are those that may lead to an address inside this network."""

    def __init__(self, private: Iterable[str], resolve: Resolve = socket.getaddrinfo) -> None:
        self._network = CheckedNetwork(private, resolve)

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a name, all judged. Raises `OSError` for one that is not known, `Refused` (`R-URL`)."""
        try:
            return self._network.addresses(host, port)
        except Unavailable as error:
            raise OSError(error.why) from error
        except Refused as error:
            raise Refused([replace(reason, field=FIELD) for reason in error.reasons]) from error
