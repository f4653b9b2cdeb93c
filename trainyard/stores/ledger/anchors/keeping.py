"""Anchoring: which anchors lack the newest entries, what they have, and what this home keeps about it.

    ledger/anchors/000000200-office.json         where and when, with the digests of the next two
    ledger/anchors/000000200-office.checkpoint   the anchored checkpoint, with the cosignature of a witness
    ledger/anchors/000000200-office.token        the timestamp of an authority (DER)
    access/anchors.json                          the anchors that were not reached, and when they are tried again

Each checkpoint that is anchored, and each outage of an anchor, has an entry in the ledger. Nothing waits for an anchor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from trainyard.anchor_settings import AnchorSetting
from trainyard.errors import Corrupt, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.ledger.anchors.contract import AnchorRecord, SeenCheckpoint, is_beginning
from trainyard.stores.ledger.anchors.table import ANCHOR_KINDS
from trainyard.stores.ledger.log import Head, Ledger, run_key
from trainyard.stores.ledger.notes import parse_checkpoint, parse_note
from trainyard.stores.ledger.recording import ANCHOR_FAILED, ANCHORED
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably, write_whole

FIRST_RETRY_S, LAST_RETRY_S = 60.0, 3600.0
OWN_KINDS = (ANCHORED, ANCHOR_FAILED)
"""Entries about anchors alone: the log is not anchored again because of them."""
Settings = Mapping[str, AnchorSetting]


@dataclass(frozen=True)
class PendingAnchor:
    """An anchor that was not reached."""

    since: float
    attempts: int
    next_try: float
    size: int
    """Entries that were to be anchored."""
    code: str
    what: str

    @property
    def text(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.since))
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"failed {times} since {when} UTC; it is tried again ({self.code}: {self.what})"


@dataclass(frozen=True)
class AnchorOutcome:
    """Result of anchoring at one anchor."""

    name: str
    kind: str
    record: AnchorRecord | None = None
    """The newest checkpoint there; None before the first."""
    is_new: bool = False
    error: TrainyardError | None = None


@dataclass(frozen=True)
class AnchorVerification:
    """Result of comparing an anchor with the log."""

    name: str
    kind: str
    newest: SeenCheckpoint | None = None
    count: int = 0
    problem: str = ""
    """What does not fit: the log or the anchor was changed."""
    unreachable: str = ""
    """Why the anchor could not be asked."""


# What this home keeps


def records_folder(ledger: Ledger) -> Path:
    return ledger.folder / "anchors"


def record_file(ledger: Ledger, size: int, name: str) -> Path:
    return records_folder(ledger) / f"{size:09d}-{name}.json"


def read_records(ledger: Ledger, name: str = "") -> list[AnchorRecord]:
    """Return what is kept about anchored checkpoints, the smallest first. Raises `Corrupt` for a changed file."""
    records = []
    for path in sorted(records_folder(ledger).glob("*.json")):
        try:
            value = read_versioned("anchor", path.read_bytes(), path)
            value.pop("schema_version", None)
            files = {part: read_part(path, part, str(value.pop(f"{part}_sha256"))) for part in PARTS}
            record = AnchorRecord(**(value | files))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{path.name} of the anchors cannot be read, or was changed: {error}.") from error
        if not name or record.name == name:
            records.append(record)
    return sorted(records, key=lambda record: (record.size, record.name))


PARTS = {"note": ".checkpoint", "token": ".token"}


def read_part(path: Path, part: str, digest: str) -> bytes:
    """Return a file of a record; empty for a part that it has not. Raises `Corrupt`."""
    file = path.with_suffix(PARTS[part])
    data = file.read_bytes() if digest and file.is_file() else b""
    if digest and sha256(data).hexdigest() != digest:
        raise Corrupt(f"{file.name} of the anchors is missing or was changed.")
    return data


def write_record(ledger: Ledger, record: AnchorRecord) -> str:
    """Write a record, its parts first; return the digest of it."""
    path = record_file(ledger, record.size, record.name)
    fields = asdict(record)
    parts = {part: fields.pop(part) for part in PARTS}
    with translate_os_errors("The record of an anchor was not written"):
        make_folders(DISK, path.parent)
        for part, data in parts.items():
            if data:
                write_whole(DISK, path.with_suffix(PARTS[part]), data)
        digests = {f"{part}_sha256": sha256(data).hexdigest() if data else "" for part, data in parts.items()}
        text = json.dumps(add_version("anchor", {**fields, **digests}), sort_keys=True, indent=1) + "\n"
        write_whole(DISK, path, text.encode())
    return sha256(text.encode()).hexdigest()


def pending_file(ledger: Ledger) -> Path:
    return ledger.key_file.with_name("anchors.json")


def read_pending(ledger: Ledger) -> dict[str, PendingAnchor]:
    """Return name -> the outage of each anchor that was not reached."""
    path = pending_file(ledger)
    if not path.is_file():
        return {}
    value = read_versioned("anchors", path.read_bytes(), path)
    return {name: PendingAnchor(**row) for name, row in value["pending"].items()}


def write_pending(ledger: Ledger, pending: Mapping[str, PendingAnchor]) -> None:
    rows = {name: asdict(row) for name, row in pending.items()}
    with translate_os_errors("The state of the anchors was not written"):
        write_json_durably(pending_file(ledger), add_version("anchors", {"pending": rows}))


# Anchoring


def anchor_ledger(ledger: Ledger, anchors: Settings, now: Callable[[], float] = time.time) -> list[AnchorOutcome]:
    """Bring the newest checkpoint to each anchor that lacks entries, then record in the ledger how that ended.

    An anchor that fails hinders no other; an outage is one entry, however often the anchor is tried.
    """
    ledger.head()
    folder = records_folder(ledger)
    with translate_os_errors("The ledger was not anchored"):
        make_folders(DISK, folder)
        with DISK.locked(folder / ".lock"):
            head = ledger.head()
            ledger.require_whole(head)
            pending = read_pending(ledger)
            outcomes = [anchor_at(ledger, head, name, setting, now) for name, setting in anchors.items()]
            drafts, left = [], dict(pending)
            for outcome in outcomes:
                if outcome.error is not None:
                    left[outcome.name] = row = count_failure(outcome.error, pending.get(outcome.name), head.size, now())
                    drafts.append(draft_failure(outcome, row))
                elif outcome.record is not None and outcome.is_new:
                    left.pop(outcome.name, None)
                    drafts.append(draft_anchored(outcome.record, write_record(ledger, outcome.record)))
            if left != pending:
                write_pending(ledger, left)
            if drafts:
                ledger.append(*drafts)
    return outcomes


def anchor_at(ledger: Ledger, head: Head, name: str, setting: AnchorSetting, now: Callable[[], float]) -> AnchorOutcome:
    """Anchor at one place, after a look at what is there."""
    kind, newest = ANCHOR_KINDS[setting.kind], None
    try:
        records = read_records(ledger, name)
        newest = records[-1] if records else None
        if newest is not None and not has_news(head, newest.size):
            return AnchorOutcome(name, setting.kind, newest)
        require_own_history(head, kind.look(setting, head.checkpoint.origin, records), name)
        placed = kind.place(setting, head, records)
    except TrainyardError as error:
        return AnchorOutcome(name, setting.kind, newest, error=error)
    assert head.note is not None
    record = AnchorRecord(
        name, setting.kind, head.checkpoint.origin, head.size, head.checkpoint.root.hex(), round(now(), 3),
        placed.where, placed.facts, placed.note or head.note.data, placed.token,
    )  # fmt: skip
    return AnchorOutcome(name, setting.kind, record, is_new=True)


def count_failure(error: TrainyardError, before: PendingAnchor | None, size: int, now_s: float) -> PendingAnchor:
    """Return the outage with one more try, and the time of the next."""
    since, attempts = (before.since, before.attempts + 1) if before else (round(now_s, 3), 1)
    wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(attempts - 1, 10))
    return PendingAnchor(since, attempts, round(now_s + wait_s, 3), size, error.code, error.what)


def draft_failure(outcome: AnchorOutcome, row: PendingAnchor) -> JsonObject:
    return {
        "kind": ANCHOR_FAILED, "key": run_key(ANCHOR_FAILED, outcome.name, row.since), "anchor": outcome.name,
        "anchor_kind": outcome.kind, "code": row.code, "size": row.size,
    }  # fmt: skip


def draft_anchored(record: AnchorRecord, digest: str) -> JsonObject:
    return {
        "kind": ANCHORED, "key": run_key(ANCHORED, record.name, record.size, record.root), "anchor": record.name,
        "anchor_kind": record.kind, "size": record.size, "root": record.root, "where": record.where,
        "record_sha256": digest,
    }  # fmt: skip


def has_news(head: Head, size: int) -> bool:
    """Return whether a log has entries beyond `size` that are about more than anchors."""
    return size > head.size or any(head.entry(seq)["kind"] not in OWN_KINDS for seq in range(size, head.size))


def require_own_history(head: Head, seen: Sequence[SeenCheckpoint], name: str) -> None:
    """Raise `Corrupt` unless every checkpoint that an anchor has is a beginning of the log."""
    if problem := describe_other_history(head, seen):
        raise Corrupt(
            f"The anchor {name} is about another history: {problem}",
            do="Run `trainyard ledger verify --anchor`, and ask which backup this home was restored from.",
        )


def describe_other_history(head: Head, seen: Sequence[SeenCheckpoint]) -> str:
    """Return what does not fit, empty if all does."""
    for checkpoint in seen:
        if checkpoint.size > head.size:
            return (
                f"it has seen {checkpoint.size:,} entries, {head.size:,} are here: this log was cut or put back "
                f"({checkpoint.where})."
            )
        if not is_beginning(head, checkpoint.size, checkpoint.root):
            return f"its {checkpoint.size:,} entries are not the first ones of this log ({checkpoint.where})."
    return ""


def list_due(ledger: Ledger, anchors: Settings, every: str, now: float) -> list[str]:
    """Return the anchors that are to get a checkpoint now: by the schedule, or by the next try after an outage."""
    if not every:
        return []
    head, pending, due = ledger.head(), read_pending(ledger), []
    for name in anchors:
        records = read_records(ledger, name)
        size, anchored = (records[-1].size, records[-1].time) if records else (0, 0.0)
        if name in pending:
            is_due = not now < pending[name].next_try <= now + LAST_RETRY_S  # later: the clock was set back since
        elif every == "night":
            is_due = any(head.entry(seq).get("node") == NIGHT_NODE for seq in range(size, head.size))
        else:
            is_due = not 0 <= now - anchored < PERIODS_S[every]
        if is_due and has_news(head, size):
            due.append(name)
    return due


PERIODS_S = {"hour": 3600.0, "day": 86_400.0}
NIGHT_NODE = "nightly"
"""Node of the entries of a night."""


# Verification


def check_records(ledger: Ledger, head: Head, numbers: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the problems and the facts of what is kept about anchors, without asking any of them.

    `numbers` are the entries of kind `anchored`.
    """
    problems, lines = [*compare_entries(ledger, head, numbers)], []
    try:
        records = read_records(ledger)
    except TrainyardError as error:
        return [error.what], []
    newest: dict[str, AnchorRecord] = {}
    for record in records:
        checkpoint = parse_checkpoint(parse_note(record.note).text)
        named = (checkpoint.origin, checkpoint.size, checkpoint.root.hex())
        seen = SeenCheckpoint(checkpoint.size, checkpoint.root, record.where)
        if named != (record.origin, record.size, record.root):
            problems.append(f"The anchor {record.name} of {record.size:,} entries is about another checkpoint.")
        elif problem := describe_other_history(head, [seen]):
            problems.append(f"The anchor {record.name}: {problem}")
        newest[record.name] = record
    lines += [f"{r.size:,} entries by {name} ({r.kind}), {r.where}; not asked" for name, r in newest.items()]
    return problems, lines


def compare_entries(ledger: Ledger, head: Head, numbers: Sequence[int]) -> Iterator[str]:
    """Yield which records of anchors are not those that the ledger's entries name."""
    for seq in numbers:
        entry = head.entry(seq)
        path = record_file(ledger, int(entry["size"]), str(entry["anchor"]))
        if not path.is_file():
            yield f"The record {path.name}, which entry {seq} names, is not there any more."
        elif sha256(path.read_bytes()).hexdigest() != entry.get("record_sha256"):
            yield f"The record {path.name} is not the one that entry {seq} names."


def verify_anchors(ledger: Ledger, head: Head, anchors: Settings) -> list[AnchorVerification]:
    """Ask every anchor for its checkpoints, and compare them with the log and with what is kept here."""
    return [verify_anchor(ledger, head, name, setting) for name, setting in anchors.items()]


def verify_anchor(ledger: Ledger, head: Head, name: str, setting: AnchorSetting) -> AnchorVerification:
    kind = ANCHOR_KINDS[setting.kind]
    try:
        records = read_records(ledger, name)
        seen = kind.look(setting, head.checkpoint.origin, records)
    except Corrupt as error:
        return AnchorVerification(name, setting.kind, problem=error.what)
    except TrainyardError as error:
        return AnchorVerification(name, setting.kind, unreachable=str(error))
    newest = max(seen, key=lambda checkpoint: checkpoint.size, default=None)
    problem = describe_other_history(head, seen) or describe_missing(records, seen, kind.lists_all)
    return AnchorVerification(name, setting.kind, newest, len(seen), problem)


def describe_missing(records: Sequence[AnchorRecord], seen: Sequence[SeenCheckpoint], lists_all: bool) -> str:
    """Return which checkpoint an anchor has lost, empty if none: it was removed there."""
    there = {(checkpoint.size, checkpoint.root.hex()) for checkpoint in seen}
    most = max((checkpoint.size for checkpoint in seen), default=0)
    for record in records:
        if (record.size, record.root) not in there if lists_all else record.size > most:
            return f"the checkpoint of {record.size:,} entries is not there any more ({record.where})."
    return ""
