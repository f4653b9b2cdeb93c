"""The audit log as a stream of the ledger: an entry names the last line so far by its number and its hash.

A line of the audit log has the hash of the line before it, so that an entry covers every line up to its own. The lines
stay in TRAINYARD_HOME/audit: they name callers and requests, and the ledger has digests alone. One entry covers the
lines of a minute, so that no request waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trainyard.errors import NotFound
from trainyard.stores.audit import AuditLog, find_end
from trainyard.stores.ledger.log import CHECKPOINT, Head, Ledger, run_key
from trainyard.stores.ledger.recording import AUDITED

EVERY_S = 60.0


def audit_folder(ledger: Ledger) -> Path:
    return ledger.folder.with_name("audit")


def list_audited(ledger: Ledger) -> list[int]:
    """Return the numbers of the entries that name a line, the newest first; none without a ledger."""
    try:
        head = ledger.synced()
    except NotFound:
        return []
    return ledger.index.select(kind=AUDITED, limit=head.size)


def read_audited(ledger: Ledger) -> list[int]:
    """Return the same from the entries themselves: the index could be changed."""
    try:
        head = ledger.head()
    except NotFound:
        return []
    return [seq for seq in reversed(range(head.size)) if head.entry(seq)["kind"] == AUDITED]


def commit_audit(ledger: Ledger) -> bool:
    """Add the entry of the last line, unless it is there; return whether it was added. Raises as `Ledger.append`."""
    folder = audit_folder(ledger)
    if not folder.is_dir() or not (end := find_end(folder)).seq:
        return False
    newest = next(iter(list_audited(ledger)), None)
    entry = ledger.head().entry(newest) if newest is not None else {}
    last, digest = int(entry.get("last", 0)), entry.get("sha256")
    if (last, digest) == (end.seq, end.digest):
        return False
    begun_again = {"begun_again": True} if last >= end.seq else {}
    draft = {"kind": AUDITED, "first": 1 if begun_again else last + 1, "last": end.seq, "sha256": end.digest}
    (receipt,) = ledger.append({**draft, **begun_again, "key": run_key(AUDITED, end.seq, end.digest)})
    return not receipt.repeated


def is_due(ledger: Ledger) -> bool:
    """Return whether a ledger that is there has had no entry for a minute; the next line is a reason for one."""
    try:
        return time.time() - (ledger.folder / CHECKPOINT).stat().st_mtime >= EVERY_S
    except OSError:
        return False


def check_audit(ledger: Ledger, head: Head, numbers: Sequence[int]) -> list[str]:
    """Return which lines of the audit log are not those that the ledger names; `numbers` are its entries of this kind.

    Whether the lines between them fit each other is what `stores.audit.verify_log` checks.
    """
    named: dict[int, tuple[int, str]] = {}
    problems = []
    for seq in sorted(numbers):
        entry = head.entry(seq)
        if entry.get("begun_again"):
            problems.append(f"the audit log was begun again before entry {seq} of the ledger: what it had is not here")
            named.clear()
        named[int(entry["last"])] = seq, str(entry["sha256"])
    hashes = {int(line["seq"]): str(line["hash"]) for line in AuditLog(audit_folder(ledger)).lines()} if named else {}
    for last, (seq, digest) in sorted(named.items()):
        if last not in hashes:
            problems.append(f"line {last} of the audit log, which entry {seq} of the ledger names, is missing")
        elif hashes[last] != digest:
            problems.append(f"line {last} of the audit log is not the one that entry {seq} of the ledger names")
    return problems
