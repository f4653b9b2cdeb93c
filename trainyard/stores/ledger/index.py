"""The index of a ledger: which entry has a run key, and which entries are of a kind, a run or a tenant.

SQLite, made again from the tiles whenever it does not fit them: deleting it loses nothing. One process at a time
writes it, the one that has the ledger's lock.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainyard.json_types import JsonMapping

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries
    (seq INTEGER PRIMARY KEY, key TEXT, kind TEXT, run TEXT, tenant TEXT, leaf BLOB);
CREATE INDEX IF NOT EXISTS entries_key ON entries (key);
"""
BUSY_S = 30.0
IndexRow = tuple[int, JsonMapping, bytes]
"""(number, entry, leaf hash)."""


class LedgerIndex:
    """The index in one file, or in memory without a path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._lock = threading.RLock()

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, which stays open; a child of a fork opens its own."""
        try:
            with self._lock:
                if self._connection is None or self._process != os.getpid():
                    self._connection, self._process = self._connect(), os.getpid()
                with self._connection as connection:
                    yield connection
        except sqlite3.OperationalError as error:
            number = errno.ENOSPC if "full" in str(error) else errno.EIO
            raise OSError(number, f"SQLite: {error}", str(self.path)) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path or ":memory:", timeout=BUSY_S, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")  # what a power cut spoils is made again
        connection.executescript(SCHEMA)
        return connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def sync(self, size: int, leaf_at: Callable[[int], bytes], rows: Callable[[int], Iterator[IndexRow]]) -> None:
        """Add the new entries of a log of `size`; start again where the index does not fit the log."""
        try:
            last, leaf = self.last()
            if last >= size or (last >= 0 and leaf != leaf_at(last)):
                if last == size - 1 and leaf == leaf_at(last):
                    return
                self.clear()
                last = -1
            self.add(rows(last + 1))
        except sqlite3.DatabaseError:
            self.clear()
            self.add(rows(0))

    def clear(self) -> None:
        if self.path is not None:
            self.close()
            for end in ("", "-journal", "-wal", "-shm"):
                Path(f"{self.path}{end}").unlink(missing_ok=True)
        else:
            with self.open() as connection:
                connection.execute("DELETE FROM entries")

    def last(self) -> tuple[int, bytes]:
        """Return the number and the leaf hash of the last entry; (-1, b"") without one."""
        with self.open() as connection:
            row = connection.execute("SELECT seq, leaf FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        return (int(row[0]), bytes(row[1])) if row else (-1, b"")

    def add(self, rows: Iterator[IndexRow]) -> None:
        with self.open() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (seq, *(str(entry.get(name, "")) for name in ("key", "kind", "run", "tenant")), leaf)
                    for seq, entry, leaf in rows
                ),
            )

    def find_keys(self, keys: Sequence[str]) -> dict[str, int]:
        """Return run key -> number of the entries that have these keys."""
        with self.open() as connection:
            found = (
                connection.execute("SELECT key, seq FROM entries WHERE key = ?", (key,)).fetchone() for key in keys
            )
            return {str(row[0]): int(row[1]) for row in found if row}

    def select(self, *, limit: int, before: int | None = None, **equal: str | None) -> list[int]:
        """Return the numbers of the newest entries with these values of `kind`, `run` (its beginning) or `tenant`."""
        conditions, values = ["1 = 1"], list[object]()
        if before is not None:
            conditions.append("seq < ?")
            values.append(before)
        for name, value in equal.items():
            if value:
                conditions.append(f"substr({name}, 1, length(?)) = ?" if name == "run" else f"{name} = ?")
                values += [value, value] if name == "run" else [value]
        query = f"SELECT seq FROM entries WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT ?"
        with self.open() as connection:
            return [int(row[0]) for row in connection.execute(query, (*values, limit))]
