"""The key by which a home signs adapter versions, and the keys whose signatures it accepts.

    access/signing.pem          private key (ECDSA P-256), made at the first signature, for the owner of this home alone
    access/signing-keys.json    {"records": {<id>: {name, pem, own, added, revoked, because}}}

OpenSSF model-signing takes keys on the curves P-256, P-384 and P-521; the Ed25519 key of the ledger is none of these,
and stays the key of the ledger alone. The id of a key is the SHA-256 of its public PEM: the hint in a signature's
bundle. A key of another home is accepted only while it is in this list and not revoked.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.secret_files import SecretFile
from trainyard.stores.whole import file_to_create

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

OWN_NAME = "this-home"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
SHORTEST = 8
"""Characters of an id that name a key."""
MAX_PEM_BYTES = 4096
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class TrustedKey:
    """A public key: whose it is, and whether its signatures are accepted."""

    id: str
    name: str
    pem: str
    own: bool = False
    added: float = 0.0
    revoked: float = 0.0
    """Unix seconds; 0 for one that is accepted."""
    because: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} ({self.id[:16]})"


class SigningKeys:
    """The keys of a home. Safe for concurrent processes."""

    def __init__(self, home: Path) -> None:
        self.private_file = home / "access" / "signing.pem"
        self.file = SecretFile(
            home / "access" / "signing-keys.json",
            lambda data, path: read_versioned("signing-keys", data, path),
            lambda records: add_version("signing-keys", {"records": records}),
        )

    def list(self) -> list[TrustedKey]:
        """Return every key, this home's first. Raises `Corrupt` for a list that cannot be read."""
        return sorted(
            (build_key(key_id, record) for key_id, record in self.file.records().items()),
            key=lambda key: (not key.own, key.revoked > 0, key.name, key.id),
        )

    def find(self, key_id: str) -> TrustedKey | None:
        record = self.file.records().get(key_id)
        return None if record is None else build_key(key_id, record)

    def find_by_word(self, word: str) -> TrustedKey:
        """Return the key with this name, or with this beginning of its id. Raises `NotFound`, `Conflict`."""
        keys = [key for key in self.list() if key.name == word or (len(word) >= SHORTEST and key.id.startswith(word))]
        keys = [key for key in keys if not key.revoked] or keys
        if not keys:
            raise NotFound(f"There is no signing key {word!r}.", do="List them with `trainyard adapters keys`.")
        if len(keys) > 1:
            raise Conflict(f"{len(keys)} keys have the name or the beginning {word!r}.", do="Give the whole id.")
        return keys[0]

    def own(self) -> TrustedKey:
        """Return this home's key, made at its first use.

        Raises `Corrupt` for a private key that cannot be read, or that is not the one of the list.
        """
        if not self.private_file.is_file():
            self._create()
        key_id = compute_id(public_pem(self.read_private().public_key()))
        key = self.find(key_id)
        if key is None:
            key = self._add(public_pem(self.read_private().public_key()), OWN_NAME, own=True)
        if key.revoked:
            raise Conflict(
                f"The signing key of this home, {key.id[:16]}, is revoked.", why=key.because,
                do=f"Remove {self.private_file.name}: the next signature is made by a new key.",
            )  # fmt: skip
        return key

    def read_private(self) -> EllipticCurvePrivateKey:
        """Return the private key. Raises `Corrupt`."""
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey  # 30 ms
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(self.private_file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise Corrupt(
                f"The signing key {self.private_file} cannot be read.", why=str(error).splitlines()[0][:200],
                do="Put it back from a backup; or remove it: the next signature is made by a new key.",
            ) from error  # fmt: skip
        if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in CURVES:
            raise Corrupt(
                f"The signing key {self.private_file} is not an ECDSA key on P-256, P-384 or P-521.",
                do="Put it back from a backup; or remove it: the next signature is made by a new key.",
            )
        return key

    def _create(self) -> None:
        from cryptography.hazmat.primitives import serialization  # 30 ms
        from cryptography.hazmat.primitives.asymmetric import ec

        pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.private_file
        with translate_os_errors(f"{path} was not written"):
            make_folders(DISK, path.parent)
            path.parent.chmod(0o700)
            with DISK.locked(path.with_name(f"{path.name}.lock")):
                if path.is_file():  # another process was faster
                    return
                with file_to_create(path, DISK) as temporary:
                    temporary.touch(mode=0o600)
                    DISK.write(temporary, pem)

    def trust(self, pem: str, name: str) -> TrustedKey:
        """Accept the signatures of a public key. Raises `InvalidInput` (`E-NAME`), `Conflict` for a revoked key."""
        if not _NAME.fullmatch(name) or name == OWN_NAME:
            raise InvalidInput(
                f"{name!r} is not a valid name of a signing key.",
                why="It has to be 1 to 63 small letters, digits and hyphens, and start with a letter or digit.",
                do="Choose another, such as lab-two.", code="E-NAME",
            )  # fmt: skip
        normal = public_pem(parse_public(pem))
        existing = self.find(compute_id(normal))
        if existing is not None and existing.revoked:
            raise Conflict(
                f"The key {existing.label} was revoked.", why=existing.because,
                do="Ask its owner for a new key; a revoked one is never accepted again.",
            )  # fmt: skip
        return existing or self._add(normal, name)

    def _add(self, pem: str, name: str, *, own: bool = False) -> TrustedKey:
        key_id = compute_id(pem)
        with self.file.changing() as records:
            records.setdefault(
                key_id,
                {"name": name, "pem": pem, "own": own, "added": time.time(), "revoked": 0.0, "because": ""},
            )
            return build_key(key_id, records[key_id])

    def revoke(self, word: str, because: str) -> TrustedKey:
        """Accept no signature of a key any more. A private key of this home is removed with it: the next one is new."""
        key = self.find_by_word(word)
        with self.file.changing() as records:
            record = records[key.id]
            if not record["revoked"]:
                records[key.id] = {**record, "revoked": time.time(), "because": because}
        is_private = key.own and self.private_file.is_file()
        if is_private and compute_id(public_pem(self.read_private().public_key())) == key.id:
            os.unlink(self.private_file)
        found = self.find(key.id)
        assert found is not None
        return found


def build_key(key_id: str, record: Mapping[str, Any]) -> TrustedKey:
    """Return a key of the list. Raises `Corrupt` for a record whose id is not that of its PEM."""
    try:
        pem = str(record["pem"])
        if compute_id(pem) != key_id:
            raise ValueError("its id is that of another key")
        return TrustedKey(
            key_id, str(record["name"]), pem, bool(record["own"]), float(record["added"]), float(record["revoked"]),
            str(record["because"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"The key {key_id[:16]} in access/signing-keys.json cannot be read: {error}.",
            why="It was changed by hand, or its disk is broken.", do="Restore the file from a backup.",
        ) from error  # fmt: skip


def compute_id(pem: str) -> str:
    return hashlib.sha256(pem.encode()).hexdigest()


def public_pem(key: EllipticCurvePublicKey) -> str:
    from cryptography.hazmat.primitives import serialization  # 30 ms

    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def parse_public(pem: str) -> EllipticCurvePublicKey:
    """Read a public key. Raises `InvalidInput`, also for a private one."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey  # 30 ms
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem[:MAX_PEM_BYTES].encode())
        if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
            raise ValueError("it is not on P-256, P-384 or P-521")
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            "This is not a public key that signs adapters.", why=str(error).splitlines()[0][:200],
            do="Give the file that `trainyard adapters keys --out FILE` has written on the other machine.",
        ) from error  # fmt: skip
    return key
