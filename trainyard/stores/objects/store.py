"""Contract of object stores, in a folder or a bucket.

    store = open_store("gs://our-weights/trainyard")          or file:///srv/weights
    store.put("acme/coder/v3/manifest.json", data, if_generation_match=0)      create, never overwrite

Every object has a generation that changes with each write. `if_generation_match` makes a write conditional: 0 means
"only if there is none", a number means "only if it is still that one". An acknowledgement that was lost on the way is
looked up, so that a retry of one's own write is never taken for another writer's. Bytes are checked by CRC32C in both
directions.

    E-OBJECT-EXISTS, E-OBJECT-CHANGED   Conflict      the condition was not met
    E-NOT-FOUND                    NotFound
    E-OBJECT-STORE                  Unavailable   credentials or bucket: not retried
    E-OBJECT-STORE                      Unavailable   still failing after the total deadline
    E-CORRUPT                    Corrupt       CRC32C of what arrived is not the recorded one
    E-NAME, E-OBJECT-STORE     InvalidInput

Nothing here talks to a network before `open_store` is called with a `gs://` address.
Semantics: Cloud Storage documentation, "Request preconditions" and "Object versioning".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import google_crc32c

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound

MOST_NAME_BYTES = 1024
"""Cloud Storage's limit for an object name."""
MOST_SEGMENT_BYTES = 200
"""Of one part between slashes: file systems allow 255, and a temporary name needs some."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


@dataclass(frozen=True)
class ObjectInfo:
    """An object as it was written."""

    name: str
    generation: int
    size: int
    """Bytes."""
    crc32c: str
    """Base64 of the four bytes, most significant first, as Cloud Storage writes it."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectSettings:
    """Timeouts and retries of a client of a remote store."""

    deadline_s: float = 120.0
    """Of one operation with all its retries."""
    request_timeout_s: float = 60.0
    """Silence of the server that ends one attempt."""
    first_wait_s: float = 0.5
    most_wait_s: float = 20.0
    """Between attempts: random up to a bound that starts at the first and doubles up to the second."""
    chunk_bytes: int = 32 << 20
    """Of a resumable upload: what is sent again at most after a broken connection. A multiple of 256 KiB."""


Metadata = Mapping[str, str] | None


class ObjectStore(Protocol):
    """Object names are relative, with slashes; they cannot leave the address that the store was opened with."""

    def put(
        self, name: str, data: bytes | Path, *, if_generation_match: int | None = None, metadata: Metadata = None
    ) -> ObjectInfo:
        """Write bytes, or the content of a file. 0 creates only. Raises `Conflict`, `Unavailable`."""

    def get(self, name: str, *, generation: int | None = None) -> bytes:
        """The bytes, checked by CRC32C. Raises `NotFound` (also for a generation that was replaced), `Corrupt`."""

    def download(self, name: str, path: Path) -> ObjectInfo:
        """Write the object to a file that appears whole or not at all."""

    def head(self, name: str) -> ObjectInfo | None:
        """Return the facts of an object without its bytes; None if it does not exist."""

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return all whose name starts with `prefix`, sorted by name."""

    def delete(self, name: str, *, if_generation_match: int | None = None) -> bool:
        """False if there was none. Raises `Conflict` (`E-OBJECT-CHANGED`)."""


def crc32c(data: bytes) -> str:
    """CRC32C (Castagnoli, RFC 3720 appendix B.4) as Cloud Storage writes it: base64 of the big-endian value."""
    value: int = google_crc32c.value(data)
    return base64.b64encode(value.to_bytes(4, "big")).decode("ascii")


def check_name(name: str) -> str:
    """An object name that means the same in a folder and in a bucket, and stays inside. Raises `InvalidInput`."""
    segments = name.split("/")
    problem = ""
    if not name or len(name.encode("utf-8", "replace")) > MOST_NAME_BYTES:
        problem = f"It has to have 1 to {MOST_NAME_BYTES} bytes."
    elif any(segment in ("", ".", "..") for segment in segments):
        problem = "A part between slashes is empty, `.` or `..`: a name could lead elsewhere."
    elif any(len(segment.encode("utf-8", "replace")) > MOST_SEGMENT_BYTES for segment in segments):
        problem = f"A part between slashes has more than {MOST_SEGMENT_BYTES} bytes."
    elif any(segment.startswith(".") for segment in segments):
        problem = "A part that starts with a dot is reserved for the store's own files."
    elif _CONTROL.search(name) or name != name.encode("utf-8", "replace").decode():
        problem = "It contains a control character, a backslash, or an unpaired surrogate."
    if problem:
        raise InvalidInput(
            f"{name[:200]!r} is not a valid object name.",
            why=problem,
            do="Use a relative name such as tenant/role/v1/manifest.json.",
            code="E-NAME",
        )
    return name


def precondition_failed(name: str, generation: int, there: ObjectInfo | None) -> Conflict:
    if generation == 0:
        return Conflict(
            f"The object {name} is there already.",
            why=f"Its generation is {there.generation}." if there else "",
            do="Read it, or choose another name: it is never overwritten.",
            code="E-OBJECT-EXISTS",
        )
    return Conflict(
        f"The object {name} is no longer generation {generation}.",
        why=f"It is generation {there.generation} now." if there else "It is gone.",
        do="Read it again before changing it.",
        code="E-OBJECT-CHANGED",
    )


def object_missing(name: str, generation: int | None = None) -> NotFound:
    suffix = f" with generation {generation}" if generation is not None else ""
    return NotFound(
        f"There is no object {name}{suffix}.", do="List what is there, or run the publication.", code="E-NOT-FOUND"
    )


def object_corrupt(name: str, expected: str, actual: str) -> Corrupt:
    return Corrupt(
        f"The object {name} arrived damaged.",
        why=f"Its CRC32C is {actual}, recorded is {expected}.",
        do="Read it again; if it stays so, publish it again from its adapter version.",
        code="E-CORRUPT",
    )
