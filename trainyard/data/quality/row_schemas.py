"""Rows against the JSON Schema of a validator (`row_schema`), in a child with limits of time and memory.

A schema is a program in disguise: a pattern may backtrack for years, `uniqueItems` compares every pair, a reference may
lead to itself. Each row has `ROW_CPU_S`; a row that needs more is dropped with a reason of its own, and the next row
gets a fresh child. A set in which that happens `MOST_BREACHES` times is refused, and so is a schema that does not end
for a row without content.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from trainyard.data.schema_child import MEMORY_BYTES
from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.inherited import child_environment

ROW_CPU_S = 2.0
WALL_S = 60.0
"""For one row: a child that is stopped, or waits for a processor, uses no CPU time."""
MOST_BREACHES = 20
"""Rows of one set that may need more."""
BLOCK_BYTES = 4 << 20
"""Of rows that are sent at a time; a larger row goes alone."""
READ_BYTES = 1 << 16


class RowReply(NamedTuple):
    """What became of one row; both texts are empty if it meets the schema."""

    problem: str = ""
    limit: str = ""
    """Why the row was not judged."""


class RowSchema:
    """One JSON Schema in its child."""

    def __init__(self, schema: dict[str, Any], *, cpu_s: float = ROW_CPU_S) -> None:
        """Start the child. Raises `InvalidInput` (`E-DATA-FORMAT`) for what is not a schema or does not end."""
        self.schema, self.cpu_s, self.breaches = schema, cpu_s, 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "trainyard.data.schema_child"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_environment()
        )
        self.close = weakref.finalize(self, end_process, self.process, os.getpid())
        """End the child; called once more it does nothing."""
        self.unread = bytearray()
        self.send(orjson.dumps({"schema": self.schema, "cpu_s": self.cpu_s}))
        reply = self.receive()
        if reply:
            self.close()
        if "refused" in reply:
            raise InvalidInput(
                f"row_schema is not a JSON Schema: {reply['refused']}.",
                do="Write a schema of draft 2020-12 for a row as docs/validation.md shows it.",
                code="E-DATA-FORMAT",
            )
        if "limit" in reply:
            raise InvalidInput(
                f"row_schema used {reply['limit']} for a row without content.",
                why="It has a reference that leads to itself, or a combination that grows without end.",
                do="Let each $ref lead to a smaller part of the row, and write patterns without nested repetition.",
                code="E-DATA-FORMAT",
            )
        if "unknown" in reply:
            raise unknown_reference(reply["unknown"])

    def judge(self, rows: Sequence[Any]) -> list[RowReply]:
        """One reply for each row. Raises `InvalidInput` (`E-DATA-FORMAT`), `LimitExceeded` (`E-DATA-LIMIT`)."""
        texts, replies = [orjson.dumps(row) for row in rows], list[RowReply]()
        while len(replies) < len(texts):
            for reply in self.ask(next_block(texts, len(replies))):
                if "unknown" in reply:
                    raise unknown_reference(reply["unknown"])
                replies.append(RowReply(reply.get("problem", ""), reply.get("limit", "")))
                if replies[-1].limit:
                    self.count_breach(replies[-1].limit)
        return replies

    def ask(self, rows: Sequence[bytes]) -> Iterator[dict[str, str]]:
        """The replies about rows, as they come; the last one is that of the row of which the child died."""
        if not self.close.alive:
            self.start()
        self.send(b"[" + b",".join(rows) + b"]")
        for _ in rows:
            reply = self.receive()
            yield reply
            if "limit" in reply and not self.close.alive:
                return

    def read_line(self, descriptor: int) -> bytes:
        """One line; less at the end, or after `WALL_S` without a byte."""
        while b"\n" not in self.unread:
            if not select.select([descriptor], [], [], WALL_S)[0]:
                break
            if not (block := os.read(descriptor, READ_BYTES)):
                break
            self.unread += block
        line, end, rest = self.unread.partition(b"\n")
        self.unread = rest
        return bytes(line + end)

    def count_breach(self, limit: str) -> None:
        self.breaches += 1
        if self.breaches >= MOST_BREACHES:
            raise LimitExceeded(
                f"row_schema used {limit} for each of {self.breaches} rows.",
                why=f"Of one set at most {MOST_BREACHES - 1} rows may need that much; they are dropped and counted.",
                do="Write patterns without nested repetition, and leave uniqueItems out of long lists.",
                code="E-DATA-LIMIT",
            )

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # a child that died is noticed at the answer, which does not come
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def receive(self) -> dict[str, str]:
        """One line of the child; `limit` of a child that died or is silent, which is ended."""
        assert self.process.stdout is not None
        try:
            line = self.read_line(self.process.stdout.fileno())
        except BaseException:
            self.close()  # an interrupted exchange would leave an answer that belongs to no row
            raise
        if line.endswith(b"\n"):
            reply: dict[str, str] = orjson.loads(line)
            return reply
        with suppress(subprocess.TimeoutExpired):  # it is silent and lives
            self.process.wait(timeout=1)
        code = self.process.returncode
        self.close()
        if code in (None, -signal.SIGPROF):
            return {"limit": f"more than {self.cpu_s:g} s of processor time"}
        if code in (1, -signal.SIGKILL, -signal.SIGSEGV):
            return {"limit": f"more than {MEMORY_BYTES >> 20:,} MiB of memory"}
        raise TrainyardError(f"The process of row_schema ended with {code}.", do="Run again.", code="E-BUG")


def next_block(rows: Sequence[bytes], first: int) -> Sequence[bytes]:
    """The rows from one on that are sent at a time."""
    size, last = 0, first
    while last < len(rows) and (last == first or size + len(rows[last]) <= BLOCK_BYTES):
        size, last = size + len(rows[last]), last + 1
    return rows[first:last]


def end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a child and its pipes, unless it is another process's."""
    if owner == os.getpid():
        process.kill()
        process.communicate()


def unknown_reference(name: str) -> InvalidInput:
    return InvalidInput(
        f"row_schema refers to {name!r}, which is not in it.",
        why="References are looked up inside the schema; nothing is fetched.",
        do="Put the schema that is meant under $defs.",
        code="E-DATA-FORMAT",
    )
