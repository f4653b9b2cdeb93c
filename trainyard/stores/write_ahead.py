"""SQLite files that several processes write: their switch to a write-ahead log."""

from __future__ import annotations

import sqlite3
import time

POLL_S = 0.02


def use_write_ahead_log(database: sqlite3.Connection, wait_s: float) -> None:
    """Switch a file to a write-ahead log, which is a fact of the file and needs it alone for a moment.

    SQLite does not wait there for another connection that does the same, so this function does, for `wait_s` seconds.
    Raises `sqlite3.OperationalError`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            database.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
