"""A witness of other ledgers: what it has cosigned, and c2sp.org/tlog-witness, which is how logs ask for it.

It cosigns a checkpoint only where the log that it cosigned before is the beginning of it: then no second history can
be shown, not even with the key of the log.

    access/witness.key                       its private key
    access/witnessed/<origin>.checkpoint     the newest checkpoint of each log, with the cosignature
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import Corrupt
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.ledger.log import parse_private_key, write_key
from trainyard.stores.ledger.merkle import EMPTY_ROOT, verify_consistency
from trainyard.stores.ledger.notes import (
    COSIGNATURE,
    Checkpoint,
    Note,
    PublicKey,
    SigningKey,
    hash_origin,
    parse_checkpoint,
    parse_note,
)
from trainyard.stores.whole import write_whole

MAX_REQUEST_BYTES = 128 << 10
MOST_PROOF_LINES = 63
SIZE_TYPE, TEXT_TYPE = "text/x.tlog.size", "text/plain; charset=utf-8"


@dataclass(frozen=True)
class WitnessReply:
    """Answer of a witness, as HTTP has it."""

    status: int
    body: str
    kind: str = TEXT_TYPE


@dataclass
class Witness:
    """The witness of one home."""

    home: Path
    now: Callable[[], float] = time.time

    def key(self) -> SigningKey:
        """Return the key by which this home witnesses other ledgers; made at its first use. Raises `Corrupt`."""
        path = self.home / "access" / "witness.key"
        if not path.is_file():
            with translate_os_errors("The witness's key was not written"):
                make_folders(DISK, path.parent)
                with DISK.locked(path.with_suffix(".lock")):
                    if not path.is_file():
                        name = f"trainyard.local/witness-{secrets.token_hex(8)}"
                        write_key(DISK, path, SigningKey(name, os.urandom(32), COSIGNATURE))
        try:
            return parse_private_key(path.read_bytes(), COSIGNATURE)
        except ValueError:
            raise Corrupt(
                f"{path.name} is not a private key of a witness.",
                do="Put it back from a backup, or remove it: this home is a new witness then.",
            ) from None

    def state_path(self, origin: str) -> Path:
        name = base64.urlsafe_b64encode(origin.encode()).decode().rstrip("=")[:200]
        return self.home / "access" / "witnessed" / f"{name}.checkpoint"

    def read_state(self, origin: str) -> Note | None:
        """Return the newest cosigned checkpoint of a log; None before the first."""
        path = self.state_path(origin)
        return parse_note(path.read_bytes()) if path.is_file() else None

    @contextmanager
    def locked(self, origin: str) -> Iterator[Checkpoint | None]:
        """The newest checkpoint of a log, which nobody else replaces meanwhile."""
        state = self.state_path(origin)
        with translate_os_errors("The witness's state was not written"):
            make_folders(DISK, state.parent)
            with DISK.locked(state.with_suffix(".lock")):
                note = self.read_state(origin)
                yield None if note is None else parse_checkpoint(note.text)

    def cosign(self, note: Note, trusted: Sequence[PublicKey]) -> Note:
        """Replace the newest checkpoint of a log, and return it with the cosignature and the log's own signatures.

        The caller has checked it, and has the lock.
        """
        key = self.key()
        line = key.signature_line(note.text, int(self.now()))
        own = [row for row in note.signatures if any(row[:2] == (log.name, log.id) for log in trusted)]
        signed = parse_note(Note(note.text, tuple(own)).data + line.encode())
        write_whole(DISK, self.state_path(parse_checkpoint(note.text).origin), signed.data)
        return signed

    def add_checkpoint(self, body: bytes, logs: Sequence[PublicKey]) -> WitnessReply:
        """Answer `add-checkpoint` for the logs with these keys."""
        try:
            old, proof, note = parse_request(body)
            checkpoint = parse_checkpoint(note.text)
        except (Corrupt, ValueError):
            return WitnessReply(400, "the request is not of c2sp.org/tlog-witness\n")
        trusted = [log for log in logs if log.name == checkpoint.origin]
        if refusal := refuse_request(note, old, checkpoint, trusted):
            return refusal
        with self.locked(checkpoint.origin) as before:
            if refusal := refuse_history(old, proof, checkpoint, before):
                return refusal
            signed = self.cosign(note, trusted)
        return WitnessReply(200, signed.data.decode().splitlines(keepends=True)[-1])

    def read_published(self, origin_hash: str, logs: Sequence[PublicKey]) -> WitnessReply:
        """Answer `GET <origin hash>/checkpoint`."""
        for log in logs:
            if hash_origin(log.name) == origin_hash and (note := self.read_state(log.name)) is not None:
                return WitnessReply(200, note.data.decode())
        return WitnessReply(404, "no checkpoint of this log was cosigned\n")


def refuse_request(note: Note, old: int, checkpoint: Checkpoint, trusted: Sequence[PublicKey]) -> WitnessReply | None:
    """Return the refusal of a request that is wrong whatever was cosigned before."""
    if not trusted:
        return WitnessReply(404, "the log is unknown\n")
    if not is_trusted(note, trusted):
        return WitnessReply(403, "the checkpoint is not signed by a trusted key of its log\n")
    if old > checkpoint.size:
        return WitnessReply(400, "the old size is larger than the checkpoint's\n")
    return None


def refuse_history(
    old: int, proof: Sequence[bytes], checkpoint: Checkpoint, before: Checkpoint | None
) -> WitnessReply | None:
    """Return the refusal of a checkpoint that does not begin with the one before."""
    size, root = (before.size, before.root) if before else (0, EMPTY_ROOT)
    if old != size:
        return WitnessReply(409, f"{size}\n", SIZE_TYPE)
    if checkpoint.size == 0 and checkpoint.root != EMPTY_ROOT:
        return WitnessReply(422, "the root is not that of an empty tree\n")
    if not verify_consistency(old, checkpoint.size, root, checkpoint.root, proof):
        return WitnessReply(422, "the log does not begin with the one that was cosigned\n")
    return None


def is_trusted(note: Note, trusted: Sequence[PublicKey]) -> bool:
    """Return whether a trusted key has signed the note, and no line names one whose signature is wrong."""
    named = [log for log in trusted if any(row[:2] == (log.name, log.id) for row in note.signatures)]
    lines = [row for log in named for row in note.signatures if row[:2] == (log.name, log.id)]
    return bool(lines) and all(
        Note(note.text, (line,)).is_signed_by(log) for log in named for line in lines if line[:2] == (log.name, log.id)
    )


def parse_request(body: bytes) -> tuple[int, list[bytes], Note]:
    """Return old size, proof and checkpoint of a request. Raises `ValueError`, `Corrupt`."""
    head, separator, note = body.partition(b"\n\n")
    first, *lines = head.decode("ascii").split("\n")
    word, _, digits = first.partition(" ")
    if not separator or word != "old" or not digits.isdecimal() or str(int(digits)) != digits:
        raise ValueError("no old size")
    proof = [base64.b64decode(line, validate=True) for line in lines]
    if len(proof) > MOST_PROOF_LINES or any(len(value) != len(EMPTY_ROOT) for value in proof):
        raise ValueError("no proof")
    return int(digits), proof, parse_note(note)
