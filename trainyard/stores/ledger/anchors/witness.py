"""Anchor at a witness (c2sp.org/tlog-witness): it cosigns a checkpoint only if the one before is its beginning."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from trainyard.anchor_settings import WitnessAnchor
from trainyard.errors import Corrupt
from trainyard.stores.ledger.anchors.contract import (
    AnchorRecord,
    PlacedCheckpoint,
    SeenCheckpoint,
    build_unreachable,
    request_anchor,
)
from trainyard.stores.ledger.log import CHECKPOINT, Head
from trainyard.stores.ledger.merkle import prove_consistency
from trainyard.stores.ledger.notes import Note, PublicKey, hash_origin, parse_checkpoint, parse_note, parse_vkey

SIZE_TYPE = "text/x.tlog.size"
SIZE = re.compile(rb"[0-9]{1,18}")
NOT_FOUND = (404, 405)
OK, CONFLICT, ANOTHER_HISTORY = 200, 409, 422


def write_request(head: Head, old: int) -> bytes:
    """Return the body of `add-checkpoint`: the size that the witness knows, the proof since, and the checkpoint."""
    assert head.note is not None
    proof = prove_consistency(old, head.size, head.tiles.subtree)
    lines = [f"old {old}", *(base64.b64encode(value).decode() for value in proof), "", ""]
    return "\n".join(lines).encode() + head.note.data


def request_witness(setting: WitnessAnchor, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
    """Return status, content type and body. Raises `Unavailable`."""
    import httpx  # half a second, and only requests need it

    try:
        answer = request_anchor(method, f"{setting.url.rstrip('/')}/{path}", body)
    except httpx.HTTPError as error:
        raise build_unreachable("The witness does not answer.", type(error).__name__) from error
    return answer.status, answer.kind, answer.body


def place_at_witness(setting: WitnessAnchor, head: Head, records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Have the checkpoint cosigned. Raises `Corrupt` where the witness has seen another history."""
    assert head.note is not None
    key = parse_vkey(setting.key)
    old = max((record.size for record in records), default=0)
    status, kind, body = request_witness(setting, "POST", "add-checkpoint", write_request(head, min(old, head.size)))
    is_size = kind.partition(";")[0].strip() == SIZE_TYPE and SIZE.fullmatch(body.strip())
    if status == CONFLICT and is_size:
        old = int(body)
        if old > head.size:
            raise Corrupt(
                f"The witness {key.name} has seen {old:,} entries; this log has {head.size:,}.",
                why="It was cut, or put back to an earlier state.",
            )
        status, _, body = request_witness(setting, "POST", "add-checkpoint", write_request(head, old))
    if status == ANOTHER_HISTORY:
        raise Corrupt(
            f"The witness {key.name} has seen {old:,} entries that are not the beginning of this log.",
            why="It was written anew.",
        )
    if status != OK:
        raise build_unreachable(
            f"The witness {key.name} answered with status {status}.",
            "404: it does not know this log. 403: it does not trust its key.", "E-SERVER-REFUSED",
        )  # fmt: skip
    cosigned = parse_note(head.note.data + body)
    kept = [line for line in cosigned.signatures if line[:2] == (key.name, key.id)]
    note = Note(cosigned.text, (*head.note.signatures, *kept))
    times = list(note.times(key))
    if not times:
        raise Corrupt(f"The answer is not signed by the witness {key.name}.")
    return PlacedCheckpoint(f"cosigned by {key.name}", {"witness": key.vkey, "cosigned": times[-1]}, note=note.data)


def look_at_witness(setting: WitnessAnchor, origin: str, records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    """Return the cosigned checkpoints that are kept here, and the newest one that the witness publishes."""
    key = parse_vkey(setting.key)
    seen = [read_cosigned(parse_note(record.note), key, origin) for record in records]
    status, _, body = request_witness(setting, "GET", f"{hash_origin(origin)}/{CHECKPOINT}")
    if status == OK:
        seen.append(read_cosigned(parse_note(body), key, origin))
    elif status not in NOT_FOUND:
        raise build_unreachable(f"The witness answered with status {status}.", code="E-SERVER-REFUSED")
    return seen


def read_cosigned(note: Note, key: PublicKey, origin: str) -> SeenCheckpoint:
    """Return a cosigned checkpoint. Raises `Corrupt` unless the witness has signed it."""
    checkpoint, times = parse_checkpoint(note.text), list(note.times(key))
    if not times or checkpoint.origin != origin:
        raise Corrupt(f"A checkpoint of {checkpoint.size:,} entries is not cosigned by the witness {key.name}.")
    return SeenCheckpoint(checkpoint.size, checkpoint.root, f"cosigned by {key.name}", float(times[-1]))
