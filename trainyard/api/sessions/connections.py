"""Connections to open sessions that are kept between calls: a session starts a thread for each new one.

A kept connection is used again within `KEPT_S`, well before the session closes it, and only while nothing has come from
the other side: what can be read on an idle connection is its end.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.backends.sessions.frames import lost_session, open_connection, send_and_receive

KEPT_S = 20.0
"""A session ends a connection that is idle for a minute."""
MOST_KEPT = 8
"""Of one session."""


@dataclass
class SessionConnections:
    """The idle connections of this process, by the path of the session's socket; the newest is used first."""

    idle: dict[str, list[tuple[socket.socket, float]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, path: str, header: Mapping[str, Any], body: bytes, timeout_s: float) -> dict[str, Any]:
        """One call and its reply. Raises the error of the session; `Conflict` (`E-SESSION-STATE`) if nobody answers."""
        try:
            connection = self.take(path) or open_connection(path)
        except OSError as error:
            raise lost_session(str(error)) from error
        whole = False
        try:
            connection.settimeout(timeout_s)
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

    def take(self, path: str) -> socket.socket | None:
        """An idle connection that is still open; those that are not are closed."""
        while True:
            with self.lock:
                if not (idle := self.idle.get(path)):
                    return None
                connection, since = idle.pop()
            if time.monotonic() - since < KEPT_S and not select.select([connection], [], [], 0)[0]:
                return connection
            connection.close()

    def keep(self, path: str, connection: socket.socket) -> None:
        """Keep a connection for the next call, and close those that nobody has used in time, of every session."""
        now, late = time.monotonic(), []
        with self.lock:
            self.idle.setdefault(path, []).append((connection, now))
            for name, idle in list(self.idle.items()):
                while idle and (len(idle) > MOST_KEPT or now - idle[0][1] >= KEPT_S):
                    late.append(idle.pop(0)[0])
                if not idle:
                    del self.idle[name]
        for one in late:
            one.close()

    def close(self) -> None:
        """Close every idle connection."""
        with self.lock:
            idle, self.idle = self.idle, {}
        for connection, _ in (one for rows in idle.values() for one in rows):
            connection.close()
