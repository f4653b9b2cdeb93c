"""Connections that are kept between calls, for one more within a few seconds.

A kept connection is used again only while nothing has come from the other side: what can be read on an idle connection
is its end.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field


def is_readable(connection: socket.socket) -> bool:
    """Whether bytes, or the end, have come.

    By `poll`: `select.select` raises in a process with more than 1,024 open files, and Windows has nothing else.
    """
    if sys.platform == "win32":
        return bool(select.select([connection], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


@dataclass
class IdleConnections:
    """The idle connections of this process, by the name of the other side; the newest is used first."""

    kept_s: float
    """Shorter than what the other side waits for the next call."""
    max_kept: int
    """For one name."""
    idle: dict[str, list[tuple[socket.socket, float]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str) -> socket.socket | None:
        """An idle connection that is still open; those that are not are closed."""
        while True:
            with self.lock:
                if not (idle := self.idle.get(name)):
                    return None
                connection, since = idle.pop()
            if time.monotonic() - since < self.kept_s and not is_readable(connection):
                return connection
            connection.close()

    def keep(self, name: str, connection: socket.socket) -> None:
        """Keep a connection for the next call, and close those that nobody has used in time, under every name."""
        now, late = time.monotonic(), []
        with self.lock:
            self.idle.setdefault(name, []).append((connection, now))
            for one, idle in list(self.idle.items()):
                while idle and (len(idle) > self.max_kept or now - idle[0][1] >= self.kept_s):
                    late.append(idle.pop(0)[0])
                if not idle:
                    del self.idle[one]
        for closed in late:
            closed.close()

    def close(self) -> None:
        """Close every idle connection."""
        with self.lock:
            idle, self.idle = self.idle, {}
        for connection, _ in (one for rows in idle.values() for one in rows):
            connection.close()
