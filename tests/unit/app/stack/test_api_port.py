"""The port of the API: the same after `down` and `up`, requested, or refused with the process that has it."""

from __future__ import annotations

import os
import socket

import pytest

from trainyard.app.stack.api_service import choose_port, port_file
from trainyard.compute.services import free_port
from trainyard.errors import LimitExceeded
from trainyard.settings import Settings, settings


@pytest.fixture
def home_settings() -> Settings:
    loaded = settings()
    loaded.services.mkdir(parents=True, exist_ok=True)
    return loaded


def test_the_port_of_this_home_is_taken_again(home_settings: Settings) -> None:
    port = free_port(24_000)
    port_file(home_settings).write_text(f"{port}\n")
    assert choose_port(home_settings, None, print) == port


def test_a_port_that_is_taken_meanwhile_is_named(home_settings: Settings) -> None:
    messages = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        port_file(home_settings).write_text(f"{port}\n")
        assert choose_port(home_settings, None, messages.append) != port
    assert messages[0].startswith(f"port {port}, where the API of this home was, is taken by ")


def test_a_requested_port_that_is_taken_is_refused(home_settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LimitExceeded, match=rf"E-PORT: Port {port} is taken by .*pid {os.getpid()}"):
            choose_port(home_settings, port, print)
    assert choose_port(home_settings, port, print) == port
