"""Signed notes, checkpoints and cosignatures, as C2SP writes them (signed-note, tlog-checkpoint, tlog-cosignature).

    example.com/log
    20852163
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

    — example.com/log Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=

A public key is written as a *vkey*: `name+id+base64(type || key)`, where the id is the first four bytes of a SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519, COSIGNATURE, ML_DSA_COSIGNATURE = 1, 4, 6
"""Types of signatures: of the log itself, and of a witness, with its time, by Ed25519 or ML-DSA-44 (FIPS 204)."""
KEY_BYTES, SIGNATURE_BYTES = 32, 64
KEY_SIZES = {ED25519: KEY_BYTES, COSIGNATURE: KEY_BYTES, ML_DSA_COSIGNATURE: 1312}
MAX_NOTE_BYTES, MAX_NAME_BYTES = 64 << 10, 255


@dataclass(frozen=True)
class PublicKey:
    """A named public key of one type of signature."""

    name: str
    kind: int
    key: bytes

    @property
    def id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.key).digest()[:4]

    @property
    def vkey(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([self.kind]) + self.key).decode()}"

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the key itself, whatever its name."""
        return hashlib.sha256(self.key).hexdigest()

    def verify(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature  # 30 ms, and only a ledger needs it
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

        try:
            if self.kind == ML_DSA_COSIGNATURE:
                MLDSA44PublicKey.from_public_bytes(self.key).verify(signature, message)
            else:
                Ed25519PublicKey.from_public_bytes(self.key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def parse_vkey(text: str) -> PublicKey:
    """Read a vkey. Raises `InvalidInput`."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    try:
        data = base64.b64decode(encoded, validate=True)
        key = PublicKey(name, data[0], data[1:])
        if not name or len(key.key) != KEY_SIZES.get(data[0]) or key.id.hex() != key_id:
            raise ValueError
    except (ValueError, IndexError):
        raise InvalidInput(
            f"{text[:80]!r} is not a public key of a ledger or a witness.",
            why="It has the form NAME+ID+BASE64, and the id has to fit the key.",
            do="Copy the line `key` that `trainyard ledger verify` prints on the machine of the ledger.",
        ) from None
    return key


@dataclass(frozen=True)
class SigningKey:
    """A private Ed25519 key with its name."""

    name: str
    seed: bytes
    kind: int = ED25519

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.name, self.kind, self._key().public_key().public_bytes_raw())

    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # 30 ms

        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def sign(self, message: bytes) -> bytes:
        return bytes(self._key().sign(message))

    def signature_line(self, text: str, time_s: int = 0) -> str:
        """Return the line that signs a note; that of a witness contains its time."""
        if self.kind == COSIGNATURE:
            signature = time_s.to_bytes(8, "big") + self.sign(cosigned_message(text, time_s))
        else:
            signature = self.sign(text.encode())
        return f"— {self.name} {base64.b64encode(self.public.id + signature).decode()}\n"


def cosigned_message(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def cosigned_tree(name: str, text: str, time_s: int) -> bytes:
    """Return the message of an ML-DSA-44 cosignature (`cosigned_message` of tlog-cosignature) about a whole tree.

    It is empty where a name is longer than the format allows.
    """
    checkpoint = parse_checkpoint(text)
    if max(len(name.encode()), len(checkpoint.origin.encode())) > MAX_NAME_BYTES:
        return b""
    names = [bytes([len(part)]) + part for part in (name.encode(), checkpoint.origin.encode())]
    sizes = bytes(8) + checkpoint.size.to_bytes(8, "big")
    return b"subtree/v1\n\0" + names[0] + time_s.to_bytes(8, "big") + names[1] + sizes + checkpoint.root


@dataclass(frozen=True)
class Note:
    """A signed note: its text, and (name, key id, signature) of every line below it."""

    text: str
    signatures: tuple[tuple[str, bytes, bytes], ...]

    @property
    def data(self) -> bytes:
        """Return the note as it was read."""
        lines = (
            f"— {name} {base64.b64encode(key_id + signature).decode()}\n" for name, key_id, signature in self.signatures
        )
        return f"{self.text}\n{''.join(lines)}".encode()

    def is_signed_by(self, key: PublicKey) -> bool:
        return any(True for _ in self.times(key))

    def times(self, key: PublicKey) -> Iterator[int]:
        """Yield the time of each valid signature of a key: 0 for one that has none."""
        for name, key_id, signature in self.signatures:
            if (name, key_id) != (key.name, key.id):
                continue
            time_s = int.from_bytes(signature[:8], "big")
            if key.kind == COSIGNATURE:
                if len(signature) == 8 + SIGNATURE_BYTES and key.verify(
                    signature[8:], cosigned_message(self.text, time_s)
                ):
                    yield time_s
            elif key.kind == ML_DSA_COSIGNATURE:
                message = cosigned_tree(key.name, self.text, time_s)
                if message and key.verify(signature[8:], message):
                    yield time_s
            elif key.kind == ED25519 and key.verify(signature, self.text.encode()):
                yield 0


def parse_note(data: bytes) -> Note:
    """Split a note into its text and its signatures, none of which is checked. Raises `Corrupt`."""
    try:
        text, separator, lines = data.decode().rpartition("\n\n")
        signatures = []
        for line in lines.splitlines(keepends=True):
            dash, name, encoded = line.removesuffix("\n").split(" ")
            decoded = base64.b64decode(encoded, validate=True)
            if dash != "—" or not line.endswith("\n") or base64.b64encode(decoded).decode() != encoded:
                raise ValueError
            signatures.append((name, decoded[:4], decoded[4:]))
        controls = any(ord(character) < 32 and character != "\n" for character in text)
        if not separator or not signatures or controls or len(data) > MAX_NOTE_BYTES:
            raise ValueError
    except (ValueError, binascii.Error):
        raise Corrupt("The checkpoint is not a signed note.", why="It was cut or changed.") from None
    return Note(text + "\n", tuple(signatures))


@dataclass(frozen=True)
class Checkpoint:
    """Head of a log: its origin, its number of entries, and the root of their tree."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def hash_origin(origin: str) -> str:
    """Return the name of a log at witnesses and anchors (tlog-witness): SHA-256 of its origin."""
    return hashlib.sha256(origin.encode()).hexdigest()


def parse_checkpoint(text: str) -> Checkpoint:
    """Read the text of a checkpoint; lines after the third are extensions. Raises `Corrupt`."""
    lines = text.split("\n")
    try:
        origin, size, encoded = lines[:3]
        root = base64.b64decode(encoded, validate=True)
        checkpoint = Checkpoint(origin, int(size), root)
        if str(int(size)) != size or int(size) < 0 or len(root) != KEY_BYTES or not text.startswith(checkpoint.text):
            raise ValueError
    except ValueError:
        raise Corrupt("The checkpoint has no origin, size and root.", why="It was cut or changed.") from None
    return checkpoint
