"""Proofs that others keep: an entry in the form of c2sp.org/tlog-proof, and the entry that made an adapter."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import NotFound
from trainyard.json_types import JsonObject
from trainyard.stores.ledger.log import Head, Ledger
from trainyard.stores.ledger.merkle import prove_inclusion
from trainyard.stores.ledger.recording import TRAINED

PROOF_HEADER = "c2sp.org/tlog-proof@v1"
PROOF_FILE = "ledger.tlog-proof"
"""Of a publication."""


@dataclass(frozen=True)
class ProvenTraining:
    """The entry of the training that made an adapter, and where it is in the log."""

    entry: JsonObject
    leaf: str
    """SHA-256 (hex) of its leaf."""
    vkey: str
    """The public key that signs the log."""
    proof: str

    @property
    def seq(self) -> int:
        return int(self.entry["seq"])


def read_checkpoint(head: Head) -> str:
    assert head.note is not None
    return head.note.data.decode()


def format_inclusion(head: Head, seq: int) -> str:
    """Return the proof of an entry in the form of c2sp.org/tlog-proof, which contains the checkpoint."""
    hashes = prove_inclusion(seq, head.size, head.tiles.subtree)
    lines = [PROOF_HEADER, f"index {seq}", *(base64.b64encode(value).decode() for value in hashes)]
    return "\n".join(lines) + "\n\n" + read_checkpoint(head)


def find_training(home: Path, sha256: str) -> ProvenTraining | None:
    """Return the training whose result has this digest, the one that was not reused first; None without one."""
    ledger = Ledger.at_home(home)
    try:
        head = ledger.head()
    except NotFound:
        return None
    trained = (row for row in map(head.entry, range(head.size)) if row["kind"] == TRAINED)
    made = [row for row in trained if any(part.get("sha256") == sha256 for part in (row.get("outputs") or {}).values())]
    if not made:
        return None
    entry = next((row for row in made if not row.get("reused")), made[0])
    seq = int(entry["seq"])
    leaf = head.tiles.hash_at(0, seq).hex()
    return ProvenTraining(entry, leaf, ledger.current_key(head).vkey, format_inclusion(head, seq))
