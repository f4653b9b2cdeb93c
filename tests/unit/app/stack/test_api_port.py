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
def own() -> Settings:
    found = settings()
    found.services.mkdir(parents=True, exist_ok=True)
    return found


def test_the_port_of_this_home_is_taken_again(own: Settings) -> None:
    port = free_port(24_000)
    port_file(own).write_text(f"{port}\n")
    assert choose_port(own, None, print) == port


def test_a_port_that_is_taken_meanwhile_is_named(own: Settings) -> None:
    said = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        port_file(own).write_text(f"{port}\n")
        assert choose_port(own, None, said.append) != port
    assert said[0].startswith(f"port {port}, where the API of this home was, is taken by ")


def test_a_requested_port_that_is_taken_is_refused(own: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LimitExceeded, match=rf"E-PORT: Port {port} is taken by .*pid {os.getpid()}"):
            choose_port(own, port, print)
    assert choose_port(own, port, print) == port
