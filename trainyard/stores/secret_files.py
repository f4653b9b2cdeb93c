"""Files of records that are found by a secret: mode 0600, changed whole, and read again as soon as they change.

A record is stored under the SHA-256 of its secret. That is the right hash here: a secret is 256 random bits, which
nobody can try, so a slow hash (which slows guesses of words that people choose) would only cost each request its time.
Who reads the file learns no secret from it.

Tokens of the API: `ty_` and 256 random bits, shown once; TRAINYARD_HOME/access/tokens.json has their hashes.

    {"records": {<SHA-256 of the token>: {name, scope, tenant, created, expires}}}

A token that is revoked is gone from the file, and a service that is running reads the file again when it changes. A
token is the same one by its hash, never by its name: a name that was revoked may be used again, by somebody else.

Browsers that are logged in: TRAINYARD_HOME/access/logins.json has the hash of each cookie, and its token's id.

A login ends after twelve hours, when it is logged out, and as soon as its token is revoked or expires: what it may do
is looked up again at each request. A code logs one browser in, once, within an hour: a link has it. The token
against forged requests is derived from the cookie, so it belongs to this login alone and needs no place.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import new_file

SECRET_BYTES = 32
"""256 bits."""
FOR_OTHERS = 0o077
"""Bits of a mode that let others read, write or run."""
Records = dict[str, dict[str, Any]]
"""Digest of the secret -> the record."""


def new_secret(prefix: str) -> str:
    """Return a new secret: the prefix, and 256 random bits in the letters of URLs."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """SHA-256 (hex) of a secret, under which its record is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def read_secret(reference: str, purpose: str) -> str:
    """Return the secret at `env:VARIABLE` or in a file. Raises `InvalidInput` (`E-PARAMETER`) with its purpose."""
    name = reference.removeprefix("env:")
    if name == reference:
        return read_secret_file(Path(reference), purpose)
    if not (secret := os.environ.get(name, "").strip()):
        raise InvalidInput(f"{purpose} is not set: there is no variable {name}.", code="E-PARAMETER")
    return secret


def read_secret_file(path: Path, purpose: str) -> str:
    """Return a secret. Raises `InvalidInput` (`E-PARAMETER`) for a file that is not there, or that others may read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInput(
            f"{purpose} cannot be read: {error}.", do="Correct its path in trainyard.toml.", code="E-PARAMETER"
        ) from error
    if mode & FOR_OTHERS:
        name = purpose[0].lower() + purpose[1:]
        raise InvalidInput(f"Others may read {name}, {path}.", do=f"Run `chmod 600 {path}`.", code="E-PARAMETER")
    return text


def find_record(records: Mapping[str, JsonObject], secret: str) -> JsonObject | None:
    """Return the record of a secret; all records are compared, so that the time says nothing about them."""
    digest, match = hash_secret(secret), None
    for key, record in records.items():
        if hmac.compare_digest(key, digest):
            match = record
    return match


class SecretFile:
    """The records of one file; a process that only asks reads it again when it was replaced."""

    def __init__(
        self, path: Path, unpacked: Callable[[bytes, Path], Any], packed: Callable[[Records], JsonObject]
    ) -> None:
        """`unpacked` and `packed` are the reader and the writer of the file's kind."""
        self.path, self.unpacked, self.packed = path, unpacked, packed
        self._seen: tuple[int, int, int] | None = None
        self._records: Records = {}

    def records(self) -> Records:
        """Return the records of the file; empty without one. Raises `Corrupt`, `Conflict` (`E-SCHEMA`)."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._seen, self._records = None, {}
            return self._records
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._records = self.read()
            self._seen = seen
        return self._records

    def read(self) -> Records:
        try:
            records = self.unpacked(self.path.read_bytes(), self.path)["records"]
            if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
                raise ValueError("its records are not a mapping of mappings")
        except (ValueError, KeyError) as error:
            raise Corrupt(
                f"{self.path} cannot be read: {error}.", why="It was changed by hand, or its disk is broken.",
                do="Restore it from a backup, or remove it: what it names is then not accepted any more.",
            ) from error  # fmt: skip
        return records

    @contextmanager
    def changing(self) -> Iterator[Records]:
        """The records, to change; one process at a time. They are written when the block ends without an error."""
        with translate_os_errors(f"{self.path} was not changed"):
            make_folders(DISK, self.path.parent)
            if self.path.parent.stat().st_mode & 0o077:
                self.path.parent.chmod(0o700)
        with DISK.locked(self.path.with_name(f"{self.path.name}.lock")):
            records = dict(self.read()) if self.path.is_file() else {}
            yield records
            with translate_os_errors(f"{self.path} was not changed"), new_file(self.path) as temporary:
                temporary.unlink(missing_ok=True)
                descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    json.dump(self.packed(records), stream, indent=1, sort_keys=True)


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
        """Return the rights of the token of an id; None if it was revoked or has expired."""
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


LOGIN_S = 12 * 3600
CODE_S = 3600
CODE_PREFIX = "once_"
MAX_LOGINS = 1_000
"""Of these the one that ends first makes room for another."""
OWN_STRING = "own:"
"""Begins the id of the home's own string, as that of a token is its hash."""


def logins_file(home: Path) -> Path:
    return home / "access" / "logins.json"


def unpack_logins(data: bytes, path: Path) -> object:
    return read_versioned("logins", data, path)


def pack_logins(records: Records) -> dict[str, object]:
    return add_version("logins", {"records": records})


def id_of_string(text: str) -> str:
    """Return the id of the home's own string: a login that was made with an earlier string ends with it."""
    return f"{OWN_STRING}{hash_secret(text)}"


class LoginFile:
    """The logins of browsers of a home."""

    def __init__(self, home: Path) -> None:
        self.file = SecretFile(logins_file(home), unpack_logins, pack_logins)

    def begin(self, token_id: str, now: float | None = None) -> str:
        """Return a new login with a token; return its cookie."""
        cookie = new_secret("")
        self.add(cookie, {"token": token_id}, LOGIN_S, now)
        return cookie

    def offer_code(self, token_id: str, now: float | None = None) -> str:
        """Return a new code, with which one browser logs in as with the token."""
        code = new_secret(CODE_PREFIX)
        self.add(code, {"token": token_id, "once": True}, CODE_S, now)
        return code

    def redeem_code(self, code: str, now: float | None = None) -> str | None:
        """The id of the token of a code, which is used up then; None for one that is unknown, used or too old."""
        with self.file.changing() as records:
            record = find_record(records, code)
            if record is None or not record.get("once"):
                return None
            del records[hash_secret(code)]
        return None if record["expires"] <= (time.time() if now is None else now) else str(record["token"])

    def add(self, secret: str, record: JsonObject, lasts_s: float, now: float | None) -> None:
        now = time.time() if now is None else now
        with self.file.changing() as records:
            for digest in [digest for digest, record in records.items() if record["expires"] <= now]:
                del records[digest]
            while len(records) >= MAX_LOGINS:
                del records[min(records, key=lambda digest: records[digest]["expires"])]
            records[hash_secret(secret)] = {**record, "expires": now + lasts_s}

    def find(self, cookie: str, now: float | None = None) -> str | None:
        """Return the id of the token of a login; None for one that is unknown or has ended."""
        record = find_record(self.file.records(), cookie)
        if record is None or record.get("once") or record["expires"] <= (time.time() if now is None else now):
            return None
        return str(record["token"])

    def end(self, cookie: str) -> None:
        """End a login; nothing happens to one that has ended."""
        with self.file.changing() as records:
            records.pop(hash_secret(cookie), None)


def forgery_token(cookie: str) -> str:
    """Return what a page of this server sends with its login's cookie; a page of another origin cannot know it."""
    return hmac.new(cookie.encode(), b"trainyard forgery token", hashlib.sha256).hexdigest()
