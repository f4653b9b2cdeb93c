"""Connections to sessions that are kept between calls, against a socket of the same frames."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.api.accepting_server import AcceptingServer
from trainyard.api.sessions.connections import MOST_KEPT, SessionConnections
from trainyard.backends.sessions.frames import receive_frame, send_frame
from trainyard.errors import Conflict


class Answering(AcceptingServer):
    """A session's socket that counts its connections, and ends them when it is asked to."""

    def __init__(self, path: Path) -> None:
        self.path, self.ends_after = str(path), 1000
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen()
        super().__init__(listener)

    def serve(self, connection: socket.socket) -> None:
        with connection:
            for _ in range(self.ends_after):
                if (frame := receive_frame(connection)) is None:
                    return
                if frame.header["call"] == "end":
                    return
                send_frame(connection, {"reply": {"number": self.accepted, "body": frame.body.decode()}})


@pytest.fixture
def kept() -> Iterator[SessionConnections]:
    kept = SessionConnections()
    yield kept
    kept.close()


@pytest.fixture
def session(tmp_path: Path, kept: SessionConnections) -> Iterator[Answering]:
    session = Answering(tmp_path / "calls")
    yield session
    kept.close()
    session.stop()


def ask(kept: SessionConnections, session: Answering, body: bytes = b"", call: str = "verb") -> dict[str, object]:
    return kept.ask(session.path, {"call": call}, body, 10.0)


def test_calls_share_a_connection(kept: SessionConnections, session: Answering) -> None:
    assert [ask(kept, session, str(number).encode())["body"] for number in range(5)] == ["0", "1", "2", "3", "4"]
    assert session.accepted == 1


def test_a_connection_that_the_session_has_closed_is_replaced(kept: SessionConnections, session: Answering) -> None:
    session.ends_after = 1
    for number in range(3):
        assert ask(kept, session)["number"] == number + 1
        session.threads[-1].join()
    assert session.accepted == 3


def test_a_connection_that_was_idle_for_long_is_replaced(kept: SessionConnections, session: Answering) -> None:
    ask(kept, session)
    kept.kept_s = 0.0
    ask(kept, session)
    assert session.accepted == 2


def test_a_session_that_ends_in_a_call_is_lost(kept: SessionConnections, session: Answering) -> None:
    ask(kept, session)
    with pytest.raises(Conflict, match=r"E-SESSION-STATE: .*does not answer"):
        ask(kept, session, call="end")
    assert not kept.idle.get(session.path)
    assert ask(kept, session)["number"] == 2


def test_only_some_connections_are_kept(kept: SessionConnections, session: Answering) -> None:
    start = threading.Barrier(MOST_KEPT + 4)

    def call() -> None:
        start.wait()
        ask(kept, session)

    threads = [threading.Thread(target=call) for _ in range(MOST_KEPT + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(kept.idle[session.path]) <= MOST_KEPT
