"""Connections to open sessions that are kept between calls: a session starts a thread for each new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.backends.sessions.frames import lost_session, open_connection, send_and_receive
from trainyard.cancellation import ended_on_leaving, ending_of
from trainyard.idle_connections import IdleConnections

KEPT_S = 20.0
"""A session ends a connection that is idle for a minute."""
MOST_KEPT = 8
"""Of one session."""


@dataclass
class SessionConnections(IdleConnections):
    """The idle connections of this process, by the path of the session's socket."""

    kept_s: float = KEPT_S
    max_kept: int = MOST_KEPT

    def ask(self, path: str, header: Mapping[str, Any], body: bytes, timeout_s: float) -> dict[str, Any]:
        """One call and its reply. Raises the error of the session; `Conflict` (`E-SESSION-STATE`) if nobody answers."""
        try:
            connection = self.take(path) or open_connection(path)
        except OSError as error:
            raise lost_session(str(error)) from error
        whole = False
        try:
            connection.settimeout(timeout_s)
            with ended_on_leaving(ending_of(connection)):
                answer = send_and_receive(connection, header, body)
            whole = True
        except OSError as error:
            raise lost_session(str(error)) from error
        finally:
            if whole:
                self.keep(path, connection)
            else:
                connection.close()
        return answer
