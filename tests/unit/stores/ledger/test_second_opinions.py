"""Other implementations agree about proofs, checkpoints, cosignatures and timestamps of a ledger.

Sources: sigstore's Merkle verifier (RFC 9162 by way of Trillian) and its parser of checkpoints; `openssl ts` and its
Ed25519; the messages of c2sp.org/tlog-cosignature, which are written here anew from its text.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

from trainyard.anchor_settings import TimestampAnchor
from trainyard.stores.ledger.anchors.timestamp import place_timestamp
from trainyard.stores.ledger.log import Head, Ledger
from trainyard.stores.ledger.merkle import prove_inclusion, verify_inclusion
from trainyard.stores.ledger.notes import parse_checkpoint, parse_note, parse_vkey
from trainyard.testing.anchor_servers import timestamp_authority

SIZES = (1, 2, 3, 7, 8, 64, 255, 256, 257, 300)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    log = Ledger.at_home(tmp_path_factory.mktemp("home"))
    log.append(*({"kind": "trained", "key": f"key {number}"} for number in range(299)))
    return log


def is_included(entry: bytes, index: int, size: int, hashes: list[bytes], root: bytes) -> bool:
    """Return what sigstore says about a proof."""
    from sigstore._internal.merkle import verify_merkle_inclusion  # no public function verifies one proof
    from sigstore.errors import VerificationError

    proof = SimpleNamespace(log_index=index, tree_size=size, hashes=hashes, root_hash=root)
    log_entry: Any = SimpleNamespace(_inner=SimpleNamespace(inclusion_proof=proof, canonicalized_body=entry))
    try:
        verify_merkle_inclusion(log_entry)
    except VerificationError:
        return False
    return True


def beginning(ledger: Ledger, size: int) -> Head:
    """Return the log as it was with its first entries."""
    from trainyard.stores.ledger.merkle import range_root
    from trainyard.stores.ledger.notes import Checkpoint

    head = ledger.head()
    root = range_root(0, size, head.tiles.subtree)
    return Head(Checkpoint(head.checkpoint.origin, size, root), None, head.tiles)


@pytest.mark.parametrize("size", SIZES)
def test_sigstore_verifies_our_proofs_from_tiles(ledger: Ledger, size: int) -> None:
    head = beginning(ledger, size)
    root = head.checkpoint.root
    for index in {0, 1, size // 3, size // 2, size - 2, size - 1} & set(range(size)):
        proof, entry = prove_inclusion(index, size, head.tiles.subtree), head.tiles.entry(index)
        leaf = head.tiles.hash_at(0, index)
        assert is_included(entry, index, size, proof, root)
        wrong = [
            (entry, index, size, proof[:-1], root), (entry, index, size, [*proof, root], root),
            (entry, index ^ 1, size, proof, root), (entry + b" ", index, size, proof, root),
            (entry, index, size, proof, leaf), (entry, index, size, [bytes(32), *proof[1:]], root),
        ]  # fmt: skip
        for changed, at, count, hashes, head_root in wrong:
            digest = hashlib.sha256(b"\0" + changed).digest()
            ours = verify_inclusion(digest, at, count, hashes, head_root)
            same = (changed, at, hashes, head_root) == (entry, index, proof, root)
            theirs = at < count and is_included(changed, at, count, hashes, head_root)
            assert ours == theirs, "both say the same about a changed proof"
            assert same or not ours or size == 1


def test_sigstore_reads_our_checkpoint(ledger: Ledger) -> None:
    from sigstore._internal.rekor.checkpoint import SignedCheckpoint  # no public class reads a checkpoint

    head = ledger.head()
    assert head.note is not None
    other = SignedCheckpoint.from_text(head.note.data.decode())
    named = (other.checkpoint.origin, other.checkpoint.log_size, other.checkpoint.log_hash)
    assert named == (head.checkpoint.origin, 300, head.checkpoint.root.hex())
    (signature,) = other.signed_note.signatures
    key = ledger.private_key()
    assert key is not None
    assert signature.sig_hash == hashlib.sha256(f"{key.name}\n".encode() + b"\1" + key.public.key).digest()[:4]


def test_openssl_verifies_our_checkpoint(ledger: Ledger, tmp_path: Path) -> None:
    head, key = ledger.head(), ledger.private_key()
    assert head.note is not None
    assert key is not None
    header = bytes.fromhex("302a300506032b6570032100")  # SubjectPublicKeyInfo of Ed25519 (RFC 8410)
    (tmp_path / "key.der").write_bytes(header + key.public.key)
    (tmp_path / "text").write_text(head.note.text)
    (tmp_path / "signature").write_bytes(head.note.signatures[0][2])
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-keyform", "DER", "-inkey", "key.der"]
    arguments = ["-in", "text", "-sigfile", "signature"]
    assert subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "text").write_text(head.note.text.replace("300", "301", 1))
    assert subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, check=False).returncode != 0


TEXT = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
NAME, TIME_S = "witness.example.com/w1", 1_679_315_147
ROOT = base64.b64decode(TEXT.splitlines()[2])


def sign_by_hand(kind: int, message: bytes) -> tuple[str, str]:
    """Return the vkey and the line of a cosigner, from the text of tlog-cosignature and signed-note."""
    private: Any = Ed25519PrivateKey.from_private_bytes(bytes(range(32))) if kind == 4 else MLDSA44PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    key_id = hashlib.sha256(NAME.encode() + b"\n" + bytes([kind]) + public).digest()[:4]
    blob = key_id + struct.pack(">Q", TIME_S) + private.sign(message)
    vkey = f"{NAME}+{key_id.hex()}+{base64.b64encode(bytes([kind]) + public).decode()}"
    return vkey, f"— {NAME} {base64.b64encode(blob).decode()}\n"


ED25519_MESSAGE = b"cosignature/v1\ntime 1679315147\n" + TEXT.encode()
ML_DSA_MESSAGE = b"".join(
    [
        b"subtree/v1\n\0", bytes([len(NAME)]), NAME.encode(), struct.pack(">Q", TIME_S),
        bytes([27]), b"example.com/behind-the-sofa", struct.pack(">QQ", 0, 20_852_163), ROOT,
    ]
)  # fmt: skip


@pytest.mark.parametrize(("kind", "message"), [(4, ED25519_MESSAGE), (6, ML_DSA_MESSAGE)])
def test_cosignatures_by_the_text_of_the_standard_are_accepted(kind: int, message: bytes) -> None:
    vkey, line = sign_by_hand(kind, message)
    note, key = parse_note(f"{TEXT}\n{line}".encode()), parse_vkey(vkey)
    assert parse_checkpoint(note.text).size == 20_852_163
    assert list(note.times(key)) == [TIME_S]
    for changed in (TEXT.replace("163", "164"), TEXT.replace("sofa", "sofb"), TEXT.replace("CsUY", "CsUZ")):
        assert not parse_note(f"{changed}\n{line}".encode()).is_signed_by(key)
    later = base64.b64decode(line.split(" ")[2])
    later = later[:4] + struct.pack(">Q", TIME_S + 1) + later[12:]
    forged = f"{TEXT}\n— {NAME} {base64.b64encode(later).decode()}\n"
    assert not parse_note(forged.encode()).is_signed_by(key)


def test_the_key_id_of_the_standard_s_example_is_found() -> None:
    """The example of tlog-cosignature has this line; its key is not published, so that its id alone is compared."""
    line = (
        "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0"
        "xUe+mbIUBkBIfZ+qnA==\n"
    )
    name, key_id, signature = parse_note(f"{TEXT}\n{line}".encode()).signatures[0]
    assert (name, key_id.hex(), len(signature)) == (NAME, "8d66cf3f", 72)
    assert int.from_bytes(signature[:8], "big") == TIME_S


def test_openssl_verifies_a_timestamp(ledger: Ledger, tmp_path: Path) -> None:
    head = ledger.head()
    assert head.note is not None
    with timestamp_authority(tmp_path / "tsa") as (url, roots):
        placed = place_timestamp(TimestampAnchor(kind="timestamp", url=url, roots=roots), head, [])
    (tmp_path / "token").write_bytes(placed.token)
    (tmp_path / "checkpoint").write_bytes(head.note.data)
    command = ["openssl", "ts", "-verify", "-data", "checkpoint", "-in", "token", "-CAfile", str(roots)]
    assert b"Verification: OK" in subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout
    (tmp_path / "checkpoint").write_bytes(head.note.data + b"\n")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0
