"""Signed policy files: canonical JSON as the text of a signed note (C2SP), by an Ed25519 key that the operator names.

{"default":"free","expires":"2027-06-30","format":1,…}

— trainyard.local/limits-3f… Az3grlgt…
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.spec.chain import canonical_json
from trainyard.spec.limits import LimitsPolicy
from trainyard.stores.files import DISK
from trainyard.stores.ledger.log import KEY_PREFIX, write_key
from trainyard.stores.ledger.notes import MAX_NOTE_BYTES, SigningKey, parse_note, parse_vkey

FORMAT = 1


def read_policy(path: Path, vkey: str, today: datetime.date) -> LimitsPolicy:
    """Return the policy of a file, signed by a key and in force. Raises `NotFound`, `Corrupt`, `Conflict`."""
    do = f"Put {path.name} back as it was signed, or ask who issues it for a new one."
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_NOTE_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"The policy of limits {path} cannot be read.", why=str(error.strerror), do=f"{do} Or unset limits_file.",
            code="E-LIMIT",
        ) from error  # fmt: skip
    key = parse_vkey(vkey)
    try:
        note = parse_note(data)
    except Corrupt as error:
        raise Corrupt(
            f"The policy of limits {path} is not a signed note.", why=error.why, do=do, code="E-LIMIT"
        ) from error
    if not note.is_signed_by(key):
        raise Corrupt(
            f"The policy of limits {path} was altered, or is signed by another key.",
            why=f"Its text does not fit a signature by {key.name}.", do=do, code="E-LIMIT",
        )  # fmt: skip
    policy = parse_policy(note.text, path.name)
    if policy.expires is not None and today > policy.expires:
        raise Conflict(
            f"The policy of limits {path} expired on {policy.expires}.", why=f"Today is {today} (UTC).",
            do=f"Ask {policy.issuer} for a new one.", code="E-LIMIT",
        )  # fmt: skip
    return policy


def parse_policy(text: str, name: str) -> LimitsPolicy:
    """Read a policy. Raises `Conflict` for one of a later version, `InvalidInput` for one that is not valid."""
    try:
        value = json.loads(text)
        if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > FORMAT:
            raise Conflict(
                f"The policy {name} has format {value['format']}, and this Trainyard reads {FORMAT}.",
                do="Update Trainyard, or ask for a policy of this format.", code="E-LIMIT",
            )  # fmt: skip
        policy = LimitsPolicy.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidInput(
            f"The policy {name} is not valid.", why=f"{where}: {problem['msg']}".removeprefix(": "),
            do="Correct it, and sign it again.", code="E-LIMIT",
        ) from error  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"The policy {name} is not JSON.", why=str(error)[:200], do="Correct it, and sign it again.", code="E-LIMIT"
        ) from error
    return policy


def sign_policy(policy: LimitsPolicy, key: SigningKey) -> bytes:
    """Return a policy as a signed note."""
    assert policy.format == FORMAT
    text = canonical_json(policy.model_dump(mode="json", exclude_defaults=True)).decode() + "\n"
    note = f"{text}\n{key.signature_line(text)}".encode()
    if len(note) > MAX_NOTE_BYTES:
        raise InvalidInput(
            f"The signed policy has {len(note):,} bytes, more than {MAX_NOTE_BYTES:,}.", do="Name fewer tenants.",
            code="E-LIMIT",
        )  # fmt: skip
    return note


def policy_key(home: Path) -> SigningKey:
    """Return the key by which this home signs policies; made at its first use. Raises `Corrupt`."""
    path = home / "access" / "limits.key"
    if not path.is_file():
        write_key(DISK, path, SigningKey(f"trainyard.local/limits-{secrets.token_hex(8)}", os.urandom(32)))
    try:
        name, _, encoded = path.read_text(encoding="utf-8").strip().removeprefix(KEY_PREFIX).split("+", 2)
        return SigningKey(name, base64.b64decode(encoded, validate=True)[1:])
    except (OSError, ValueError) as error:
        raise Corrupt(
            f"The key {path} cannot be read.", why=str(error)[:200],
            do="Put it back from a backup; or remove it, and sign the policy by a new key.",
        ) from error  # fmt: skip
