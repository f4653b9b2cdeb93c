"""Idempotency keys: the same request with the same `Idempotency-Key` gets the first answer and does nothing again.

Keys are kept for a day in one SQLite file of the home, by caller and operation. A key whose first request is still
worked on is refused (409), and so is one that comes with another request (422). After a crash in between the operation
is carried out again: what it starts carries the key, too, so that Prefect starts it once.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from pydantic import BaseModel
from starlette.requests import Request

from trainyard.app.context import Caller
from trainyard.errors import Conflict, InvalidInput
from trainyard.stores.write_ahead import use_write_ahead_log

HEADER = "idempotency-key"
KEPT_S = 24 * 3600.0
FORGET_EVERY_S = 60.0
LONGEST = 200
KEY = re.compile(f"[!-~]{{1,{LONGEST}}}")
TABLE = """CREATE TABLE IF NOT EXISTS replays (
  caller TEXT, operation TEXT, key TEXT, request TEXT, owner TEXT, answer BLOB, created REAL,
  PRIMARY KEY (caller, operation, key)) WITHOUT ROWID"""


def read_key(request: Request) -> str:
    """Return the key of a request; "" without one. Raises `InvalidInput` (`E-PARAMETER`) for one that cannot be
    used.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return ""
    if not KEY.fullmatch(key):
        raise InvalidInput(
            f"The Idempotency-Key has {len(key)} characters.",
            why=f"It may have 1 to {LONGEST} printable ones of ASCII, and no space.",
            do="Send a random one, such as a UUID.", code="E-PARAMETER",
        )  # fmt: skip
    return key


WAIT_S = 10.0
"""A write waits so long for another one."""


class Replays:
    """The answers that were given to keys."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path, self.now, self.owner = path, now, uuid4().hex
        self.threads, self.forget_at = threading.local(), 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        database = self.connect()
        with database:
            use_write_ahead_log(database, WAIT_S)
            database.execute(TABLE)
            database.execute("CREATE INDEX IF NOT EXISTS by_age ON replays (created)")
        os.chmod(path, 0o600)

    def connect(self) -> sqlite3.Connection:
        """This thread's connection: opening one takes longer than most operations.

        A power cut may take the last answers (`synchronous=NORMAL`), and what was started carries its key.
        """
        connection: sqlite3.Connection | None = getattr(self.threads, "database", None)
        if connection is None:
            connection = self.threads.database = sqlite3.connect(self.path, timeout=WAIT_S)
            connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    def once(self, caller: Caller, operation: str, request: BaseModel, key: str, work: Callable[[], bytes]) -> bytes:
        """Return the first answer to the key, or that of `work`; a failure is not kept, so that it can be tried again.

        Raises `Conflict` (`E-CONFLICT`) while the first request is worked on, `InvalidInput` (`E-PARAMETER`) for
        another request with the same key, and what `work` raises.
        """
        digest = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        claim_key = (caller.identity, operation, key)
        database = self.connect()
        if (stored := self.claim(database, claim_key, digest)) is not None:
            return stored
        try:
            answer = work()
        except BaseException:
            self.settle(database, claim_key, None)
            raise
        self.settle(database, claim_key, answer)
        return answer

    def claim(self, database: sqlite3.Connection, claim_key: tuple[str, str, str], digest: str) -> bytes | None:
        """Return the answer that is known, or None after the key was taken."""
        where = "caller = ? AND operation = ? AND key = ?"
        with database:
            database.execute("BEGIN IMMEDIATE")
            if self.now() >= self.forget_at:
                database.execute("DELETE FROM replays WHERE created < ?", (self.now() - KEPT_S,))
                self.forget_at = self.now() + FORGET_EVERY_S
            row = database.execute(f"SELECT request, owner, answer FROM replays WHERE {where}", claim_key).fetchone()
            if row is not None and row[0] != digest:
                raise InvalidInput(
                    "This Idempotency-Key came with another request before.", do="Use a new key for a new request.",
                    code="E-PARAMETER",
                )  # fmt: skip
            if row is not None and row[2] is not None:
                return bytes(row[2])
            if row is not None and row[1] == self.owner:
                raise Conflict(
                    "The first request with this Idempotency-Key is still worked on.", do="Ask again in a moment.",
                    code="E-CONFLICT",
                )  # fmt: skip
            values = (*claim_key, digest, self.owner, None, self.now())
            database.execute("INSERT OR REPLACE INTO replays VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return None

    def settle(self, database: sqlite3.Connection, claim_key: tuple[str, str, str], answer: bytes | None) -> None:
        where = "caller = ? AND operation = ? AND key = ?"
        with database:
            if answer is None:
                database.execute(f"DELETE FROM replays WHERE {where}", claim_key)
            else:
                database.execute(f"UPDATE replays SET answer = ? WHERE {where}", (answer, *claim_key))
