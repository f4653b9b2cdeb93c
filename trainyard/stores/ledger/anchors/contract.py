"""The contract of an anchor: `place` a checkpoint there, and `look` at all checkpoints that are there.

A kind is a module with both functions, and its row in `table.py`. An anchor is asked before it is written to: one that
has seen another history gets no further checkpoint. Errors are `TrainyardError`s without addresses, which may contain
keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import Unavailable
from trainyard.json_types import JsonObject
from trainyard.stores.ledger.log import Head
from trainyard.stores.ledger.merkle import range_root

REQUEST_S = 20.0
"""Of one request to an anchor, with its whole answer."""
MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True)
class AnchorRecord:
    """What this home keeps about one checkpoint at one anchor."""

    name: str
    kind: str
    origin: str
    size: int
    root: str
    """Hex."""
    time: float
    where: str
    """Place of the checkpoint at the anchor, for people."""
    facts: JsonObject
    note: bytes = b""
    """The anchored checkpoint; with the cosignature of a witness."""
    token: bytes = b""
    """The timestamp of an authority."""


@dataclass(frozen=True)
class PlacedCheckpoint:
    """A checkpoint that an anchor has from now on."""

    where: str
    facts: JsonObject = field(default_factory=dict)
    token: bytes = b""
    note: bytes = b""
    """The checkpoint with what the anchor added to it, if anything."""


@dataclass(frozen=True)
class SeenCheckpoint:
    """A checkpoint that an anchor has."""

    size: int
    root: bytes
    where: str
    time: float | None = None
    """Its time, as the anchor says it; None where it says none."""


Place = Callable[[Any, Head, Sequence[AnchorRecord]], PlacedCheckpoint]
"""(setting, log, records of this anchor) -> the checkpoint at the anchor. Raises `Unavailable`, `Corrupt`."""
Look = Callable[[Any, str, Sequence[AnchorRecord]], list[SeenCheckpoint]]
"""(setting, origin, records of this anchor) -> all of them. Raises `Unavailable`; `Corrupt` for one that is forged."""


@dataclass(frozen=True)
class AnchorKind:
    """Row of the table."""

    place: Place
    look: Look
    proves: str
    """What a checkpoint there proves, and to whom."""
    lists_all: bool = True
    """Whether the anchor lists every checkpoint that it has got, so that a missing one was removed."""


def is_beginning(head: Head, size: int, root: bytes) -> bool:
    """Return whether a log begins with the tree of this size and root."""
    return size <= head.size and range_root(0, size, head.tiles.subtree) == root


@dataclass(frozen=True)
class AnchorAnswer:
    """Answer of an anchor over HTTP."""

    status: int
    kind: str
    """Its content type."""
    body: bytes


def request_anchor(method: str, url: str, body: bytes = b"", content_type: str = "") -> AnchorAnswer:
    """Return the answer to a request, which is small and comes in time: others wait for their turn.

    Raises `httpx.HTTPError`.
    """
    import httpx  # half a second, and only requests need it

    deadline, data = time.monotonic() + REQUEST_S, bytearray()
    headers = {"content-type": content_type} if content_type else {}
    with httpx.stream(method, url, content=body, headers=headers, timeout=REQUEST_S, follow_redirects=False) as reply:
        for block in reply.iter_bytes():
            data += block
            if len(data) > MAX_ANSWER_BYTES:
                raise httpx.ReadError("the answer is too long")
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer takes too long")
        return AnchorAnswer(reply.status_code, reply.headers.get("content-type", ""), bytes(data))


def build_unreachable(what: str, why: str = "", code: str = "E-SERVER-UNREACHABLE") -> Unavailable:
    return Unavailable(what, why=why, do="It is tried again later; check its setting and its place.", code=code)


def require_package(error: ModuleNotFoundError, extra: str) -> Unavailable:
    return Unavailable(
        "This kind of anchor needs a package that is not installed.",
        why=f"There is no module {error.name}.",
        do=f"pip install 'trainyard[{extra}]'",
        code="E-PACKAGE-MISSING",
    )
