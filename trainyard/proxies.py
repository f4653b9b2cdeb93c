"""Loopback addresses never go to a proxy.

A machine whose way out is a proxy has HTTP_PROXY or ALL_PROXY in its environment, often without NO_PROXY. The clients
of Prefect, httpx and websockets would then ask the proxy for 127.0.0.1, where the servers of `trainyard up` listen. All
of them read NO_PROXY, and so do the children that inherit it.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy", "socks_proxy")
EXEMPTIONS = ("no_proxy", "NO_PROXY")
"""Readers prefer the first spelling, and some know only one of them."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def exempt_loopback(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add the loopback addresses to NO_PROXY, in both spellings, where the environment names a proxy."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in PROXIES):
        return
    listed = [part.strip() for name in EXEMPTIONS for part in environment.get(name, "").split(",") if part.strip()]
    if "*" in listed:
        return
    hosts = ",".join(dict.fromkeys([*listed, *LOOPBACK]))
    environment.update(dict.fromkeys(EXEMPTIONS, hosts))
