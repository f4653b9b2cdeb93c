"""Requests of the wire: who asks, for what, and the body: small JSON, or a stream that goes to the disk."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import anyio.to_thread
import orjson
from starlette.requests import ClientDisconnect, Request

from trainyard.app.context import Caller
from trainyard.errors import Denied, InvalidInput, LimitExceeded
from trainyard.operations.table import Scope
from trainyard.stores.repositories.names import KINDS, Kind, RepositoryName, parse_repository
from trainyard.surfaces.bodies import USUAL, require_structure
from trainyard.surfaces.hub.replies import REPO_MISSING, HubRefusal

MOST_JSON_BYTES = 8 << 20
FORM = "application/x-www-form-urlencoded"
SCOPES = (Scope.READ, Scope.RUN, Scope.ADMIN)
WRITE_BYTES = 1 << 20


@dataclass(frozen=True)
class Call:
    """A request of an authenticated caller. `words` are the parts of the path that its route names."""

    request: Request
    caller: Caller
    words: tuple[str, ...]
    body: bytes = b""

    @property
    def query(self) -> dict[str, str]:
        return dict(self.request.query_params)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true")

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises `InvalidInput` (`E-JSON`), `LimitExceeded` (`E-BODY-LENGTH`)."""
        require_structure(self.body, USUAL)
        try:
            value = orjson.loads(self.body or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidInput("The body is not valid JSON.", why=str(error), code="E-JSON") from error
        if not isinstance(value, dict):
            raise InvalidInput("The body is not a JSON object.", code="E-JSON")
        return value

    def form_values(self, name: str) -> list[str]:
        """Return the values of a field of a form, or of a JSON body."""
        if self.request.headers.get("content-type", "").startswith(FORM):
            try:
                fields = parse_qs(self.body.decode(), max_num_fields=10_000)
            except ValueError as error:
                raise InvalidInput("The form cannot be read.", why=str(error), code="E-JSON") from error
            return fields.get(name, [])
        return [str(value) for value in self.json().get(name, [])]

    def repository(self, kind: Kind, text: str, *, write: bool = False) -> RepositoryName:
        """Return a repository that the caller may read, or write.

        One of another tenant is answered as one that does not exist. Raises `HubRefusal`, `Denied`.
        """
        try:
            name = parse_repository(kind, text)
        except InvalidInput as error:
            raise HubRefusal(REPO_MISSING, error.what, why=error.why, code=error.code) from error
        if self.caller.tenant not in ("", name.tenant):
            raise HubRefusal(REPO_MISSING, f"There is no repository {name} of {kind}.")
        if write:
            require_scope(self.caller, Scope.RUN)
        return name


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises `Denied` (`E-SCOPE`) for a caller with fewer permissions."""
    if SCOPES.index(caller.scope) < SCOPES.index(scope):
        raise Denied(
            f"The token of {caller.name} may not write: its scope is {caller.scope.value}.",
            do=f"Use a token with the scope {scope.value}: `trainyard tokens create NAME --scope {scope.value}`.",
            code="E-SCOPE",
        )


def as_kind(word: str) -> Kind:
    """Return the kind of a repository in a path; spaces and others are not stored here. Raises `HubRefusal`."""
    for kind in KINDS:
        if word == kind:
            return kind
    raise HubRefusal(REPO_MISSING, f"A data worker has models and datasets, and no {word[:40]}.")


def split_path(request: Request) -> str:
    """Return the path as it was sent: a revision may have an escaped slash."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    return str(raw.split(b"?", 1)[0].decode("ascii", "replace"))


def decode(word: str) -> str:
    """Return a part of a path. Raises `InvalidInput` (`E-NAME`) for one that is not UTF-8."""
    try:
        return unquote(word, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput("A part of the path is not UTF-8.", code="E-NAME") from error


async def read_body(request: Request, limit: int = MOST_JSON_BYTES) -> bytes:
    """Return a body of at most `limit` bytes. Raises `LimitExceeded` (`E-BODY-LENGTH`), `InvalidInput`."""
    body = bytearray()
    async for block in receive_blocks(request):
        body += block
        if len(body) > limit:
            raise long_body(limit)
    return bytes(body)


async def receive_blocks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body. Raises `InvalidInput` (`E-JSON`) where the connection ends before it, or it is compressed."""
    if request.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise InvalidInput("A compressed body is not read.", do="Send it as it is.", code="E-MEDIA-TYPE")
    try:
        async for block in request.stream():
            yield block
    except ClientDisconnect as error:
        raise InvalidInput("The connection ended before the body did.", code="E-JSON") from error


async def receive_file(request: Request, path: Path, size: int) -> str:
    """Write a body of exactly `size` bytes to a file and return its SHA-256.

    Raises `InvalidInput` (`E-BODY-LENGTH`) for another length. The caller removes the file.
    """
    hasher, received, pending = hashlib.sha256(), 0, bytearray()
    with path.open("wb") as stream:

        def flush() -> None:
            hasher.update(pending)
            stream.write(pending)
            pending.clear()

        async for block in receive_blocks(request):
            received += len(block)
            if received > size:
                break
            pending += block
            if len(pending) >= WRITE_BYTES:
                await anyio.to_thread.run_sync(flush)
        flush()
    if received != size:
        raise InvalidInput(
            f"The body has {'more than ' if received > size else ''}{min(received, size):,} bytes, not {size:,}.",
            do="Upload it again.", code="E-BODY-LENGTH",
        )  # fmt: skip
    return hasher.hexdigest()


def long_body(limit: int) -> LimitExceeded:
    return LimitExceeded(f"The body is longer than {limit:,} bytes.", do="Send less at a time.", code="E-BODY-LENGTH")
