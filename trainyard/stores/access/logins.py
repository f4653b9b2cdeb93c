"""Browsers that are logged in: TRAINYARD_HOME/access/logins.json has the hash of each cookie, and its token's id.

A login ends after twelve hours, when it is logged out, and as soon as its token is revoked or expires: what it may do
is looked up again at each request. A code logs one browser in, once, within an hour: a link has it. The token
against forged requests is derived from the cookie, so it belongs to this login alone and needs no place.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path

from trainyard.json_types import JsonObject
from trainyard.stores.access.secret_files import Records, SecretFile, find_record, hash_secret, new_secret
from trainyard.stores.schema import add_version, read_versioned

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
