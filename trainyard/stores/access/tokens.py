"""Tokens of the API: `ty_` and 256 random bits, shown once; TRAINYARD_HOME/access/tokens.json has their hashes.

    {"records": {<SHA-256 of the token>: {name, scope, tenant, created, expires}}}

A token that is revoked is gone from the file, and a service that is running reads the file again when it changes. A
token is the same one by its hash, never by its name: a name that was revoked may be used again, by somebody else.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from trainyard.json_types import JsonObject
from trainyard.stores.access.secret_files import Records, SecretFile, find_record, hash_secret, new_secret
from trainyard.stores.schema import add_version, read_versioned

PREFIX = "ty_"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
MAX_TOKENS = 1_000
"""Every request compares its token with all of them."""
DAY_S = 86_400.0
OWNER_NAMES = ("owner",)
"""Names in the audit log of who needs no token."""


@dataclass(frozen=True)
class TokenRecord:
    """Permissions of a token; its scope is a word of `operations/table.Scope`."""

    name: str
    scope: str
    tenant: str
    """Empty: every tenant."""
    created: float
    expires: float
    id: str = ""
    """The SHA-256 of the token, under which the file has its record."""

    def is_valid(self, now: float) -> bool:
        return now < self.expires


def tokens_file(home: Path) -> Path:
    return home / "access" / "tokens.json"


def unpack_tokens(data: bytes, path: Path) -> object:
    return read_versioned("tokens", data, path)


def pack_tokens(records: Records) -> dict[str, object]:
    return add_version("tokens", {"records": records})


class TokenFile:
    """The tokens of a home."""

    def __init__(self, home: Path) -> None:
        self.file = SecretFile(tokens_file(home), unpack_tokens, pack_tokens)

    def create(self, name: str, scope: str, tenant: str, days: int, now: float | None = None) -> str:
        """A new token. Raises `InvalidInput` (`E-NAME`), `Conflict` for a name that is taken, `LimitExceeded`."""
        now = time.time() if now is None else now
        for field, text in (("token", name), ("tenant", tenant)):
            if not NAME.fullmatch(text) and (text or field == "token"):
                raise InvalidInput(
                    f"{text!r} is not a valid name of a {field}.",
                    why="It has to be 1 to 63 small letters, digits and hyphens, and start with a letter or digit.",
                    do="Choose another, such as ci.", code="E-NAME",
                )  # fmt: skip
        token = new_secret(PREFIX)
        with self.file.changing() as records:
            for digest in [digest for digest, record in records.items() if not TokenRecord(**record).is_valid(now)]:
                del records[digest]
            if name in OWNER_NAMES or any(record["name"] == name for record in records.values()):
                raise Conflict(
                    f"There is a token {name!r} already.",
                    do=f"Choose another name, or revoke it: tokens revoke {name}.",
                )
            if len(records) >= MAX_TOKENS:
                raise LimitExceeded(f"There are {MAX_TOKENS:,} tokens, which is the most.", do="Revoke some.")
            records[hash_secret(token)] = dump_record(TokenRecord(name, scope, tenant, now, now + days * DAY_S))
        return token

    def find(self, token: str, now: float | None = None) -> TokenRecord | None:
        """Return what a token allows; None for one that is unknown, revoked or expired."""
        record = find_record(self.file.records(), token)
        entry = TokenRecord(**record, id=hash_secret(token)) if record is not None else None
        return entry if entry and entry.is_valid(time.time() if now is None else now) else None

    def find_by_id(self, token_id: str, now: float | None = None) -> TokenRecord | None:
        """Return what the token of an id allows; None for one that was revoked or has expired."""
        record = self.file.records().get(token_id)
        entry = TokenRecord(**record, id=token_id) if record is not None else None
        return entry if entry and entry.is_valid(time.time() if now is None else now) else None

    def list(self) -> list[TokenRecord]:
        """Return every token, by name; those that have expired included, until another is made."""
        records = self.file.records().items()
        return sorted(
            (TokenRecord(**record, id=token_id) for token_id, record in records), key=lambda record: record.name
        )

    def revoke(self, name: str) -> TokenRecord:
        """Remove a token; it opens nothing any more. Raises `NotFound` (`E-NOT-FOUND`)."""
        with self.file.changing() as records:
            match = next((digest for digest, record in records.items() if record["name"] == name), None)
            if match is None:
                names = ", ".join(sorted(record["name"] for record in records.values())) or "none"
                raise NotFound(f"There is no token {name!r}.", why=f"There is {names}.", do="Correct the name.")
            return TokenRecord(**records.pop(match), id=match)


def dump_record(record: TokenRecord) -> JsonObject:
    """Return a record as the file has it, without the id that is its key."""
    return {name: value for name, value in asdict(record).items() if name != "id"}
