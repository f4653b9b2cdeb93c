"""Rows against the JSON Schema of a validator (`row_schema`), in a child with limits of time and memory.

A schema is a program in disguise: a pattern may backtrack for years, `uniqueItems` compares every pair, a reference may
lead to itself. Each row has `ROW_CPU_S`; a row that needs more is dropped with a reason of its own, and the next row
gets a fresh child. A set in which that happens `MOST_BREACHES` times is refused, and so is a schema that does not end
for a row without content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from trainyard.data.schema_child import MEMORY_BYTES
from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.sandbox.children import ChildEnded, LineChild
from trainyard.sandbox.limits import ChildLimits, Death

ROW_CPU_S = 2.0
MOST_BREACHES = 20
"""Rows of one set that may need more."""
BLOCK_BYTES = 4 << 20
"""Of rows that are sent at a time; a larger row goes alone."""


class RowReply(NamedTuple):
    """Outcome of one row; both texts are empty if it meets the schema."""

    problem: str = ""
    limit: str = ""
    """Why the row was not judged."""


class RowSchema(LineChild):
    """A JSON Schema in its child."""

    def __init__(self, schema: Mapping[str, object], *, cpu_s: float = ROW_CPU_S) -> None:
        """Start the child. Raises `InvalidInput` (`E-DATA-FORMAT`) for an invalid schema, or one that does not end."""
        super().__init__("trainyard.data.schema_child", ChildLimits(cpu_s, MEMORY_BYTES))
        self.schema, self.cpu_s, self.limits = schema, cpu_s, list[str]()
        self.open_schema()

    def open_schema(self) -> None:
        """Start a child for the schema. Raises `InvalidInput` (`E-DATA-FORMAT`)."""
        try:
            reply = self.start({"schema": self.schema})
        except ChildEnded as ended:
            reply = {"limit": self.describe_limit(ended)}
        if reply:
            self.stop()
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
        """Return one reply for each row. Raises `InvalidInput` (`E-DATA-FORMAT`), `LimitExceeded` (`E-DATA-LIMIT`)."""
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
        """Yield the replies about rows, as they come; the last one is that of the row of which the child died."""
        if not self.alive:
            self.open_schema()
        self.send(b"[" + b",".join(rows) + b"]")
        for _ in rows:
            try:
                yield self.receive()
            except ChildEnded as ended:
                yield {"limit": self.describe_limit(ended)}
                return

    def count_breach(self, limit: str) -> None:
        self.limits.append(limit)
        if len(self.limits) >= MOST_BREACHES:
            raise too_many_breaches(limit, len(self.limits))

    def describe_limit(self, ended: ChildEnded) -> str:
        """Return the limit that ended a child. Raises `TrainyardError` (`E-BUG`) for another end."""
        if ended.death is Death.TIME:
            return f"more than {self.cpu_s:g} s of processor time"
        if ended.death is Death.MEMORY:
            return f"more than {MEMORY_BYTES >> 20:,} MiB of memory"
        raise TrainyardError(f"The process of row_schema ended with {ended.code}.", do="Run again.", code="E-BUG")


def too_many_breaches(limit: str, rows: int) -> LimitExceeded:
    """Return the error for a set of which too many rows need too much."""
    return LimitExceeded(
        f"row_schema used {limit} for each of {rows} rows.",
        why=f"Of one set at most {MOST_BREACHES - 1} rows may need that much; they are dropped and counted.",
        do="Write patterns without nested repetition, and leave uniqueItems out of long lists.",
        code="E-DATA-LIMIT",
    )


def next_block(rows: Sequence[bytes], first: int) -> Sequence[bytes]:
    """Return the rows from one on that are sent at a time."""
    size, last = 0, first
    while last < len(rows) and (last == first or size + len(rows[last]) <= BLOCK_BYTES):
        size, last = size + len(rows[last]), last + 1
    return rows[first:last]


def unknown_reference(name: str) -> InvalidInput:
    return InvalidInput(
        f"row_schema refers to {name!r}, which is not in it.",
        why="References are looked up inside the schema; nothing is fetched.",
        do="Put the schema that is meant under $defs.",
        code="E-DATA-FORMAT",
    )
