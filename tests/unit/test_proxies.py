"""Loopback addresses are exempt from the proxies of the environment, and nothing else is."""

from __future__ import annotations

import pytest

from trainyard.inherited import child_environment
from trainyard.proxies import exempt_loopback


@pytest.mark.parametrize(
    ("environment", "exempt"),
    [
        ({}, None),
        ({"NO_PROXY": "intranet"}, "intranet"),
        ({"HTTP_PROXY": "http://proxy:1"}, "localhost,127.0.0.1,::1"),
        ({"all_proxy": "socks5://proxy:1", "no_proxy": "a, b"}, "a,b,localhost,127.0.0.1,::1"),
        ({"https_proxy": "http://proxy:1", "NO_PROXY": "*"}, "*"),
        ({"http_proxy": "http://proxy:1", "NO_PROXY": "127.0.0.1,x"}, "127.0.0.1,x,localhost,::1"),
        ({"HTTP_PROXY": ""}, None),
    ],
)
def test_loopback_is_exempt_where_a_proxy_is_named(environment: dict[str, str], exempt: str | None) -> None:
    exempt_loopback(environment)
    assert environment.get("no_proxy", environment.get("NO_PROXY")) == exempt


def test_children_inherit_the_exemption_and_not_the_terminals_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    environment = child_environment()
    assert "127.0.0.1" in environment["NO_PROXY"].split(",")
    assert environment["no_proxy"] == environment["NO_PROXY"]
    assert environment["PYTHONUTF8"] == "1"
    assert not {"PYTHONWARNINGS", "PYTHONIOENCODING"} & environment.keys()
