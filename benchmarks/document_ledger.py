"""How many documents can be marked as done in a second, each of them durably before the next one starts?

A commit of the document ledger is one append and one fsync of one line with its checksum, below a lock. The peers are
the disk itself (append the same bytes, fsync, nothing else) and what one would take otherwise: a SQLite table with
WAL and `synchronous=FULL`, one transaction an entry. The bar is 300 commits a second, or nine tenths of what the disk
can do. Group commits and the time to read a large ledger are told beside it; a second run of the same entries adds 0.

All in one folder on the same disk (TMPDIR): a memory file system would measure nothing.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Row, alternate, finish, median, size
from trainyard.stores.documents import DocumentKey, DocumentLedger, Entry, content_sha256, to_line

NUM_COMMITS, NUM_GROUPED, NUM_READ = size(400, 20), size(20_000, 200), size(100_000, 1_000)
GROUP = 50
LEAST_PER_SECOND, LEAST_OF_FSYNC = 300.0, 0.9


def entries(count: int, start: int = 0) -> list[Entry]:
    return [
        Entry(
            DocumentKey(content_sha256(str(number).encode()), "meetings", "sample-1"),
            f"2027/01/{number}.md",
            entities=7,
            relations=5,
            night="2027-01-14",
            at=1.8e9,
        )
        for number in range(start, start + count)
    ]


def ledger_commits(folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        ledger = DocumentLedger(Path(workspace) / "ledger.jsonl")
        return float(sum(ledger.record(entry) for entry in entries(NUM_COMMITS)))


def group_commits(folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        ledger, some = DocumentLedger(Path(workspace) / "ledger.jsonl"), entries(NUM_GROUPED)
        groups = (some[first : first + GROUP] for first in range(0, len(some), GROUP))
        return float(sum(ledger.record_many(group) for group in groups))


def fsync_only(folder: Path) -> float:
    """What the disk gives: the same bytes, appended and flushed one by one through one descriptor."""
    lines = [to_line(entry) for entry in entries(NUM_COMMITS)]
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        descriptor = os.open(Path(workspace) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for line in lines:
            os.write(descriptor, line)
            os.fsync(descriptor)
        os.close(descriptor)
    return float(NUM_COMMITS)


def sqlite_commits(folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        database = sqlite3.connect(Path(workspace) / "ledger.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute(
            "CREATE TABLE ledger (sha TEXT, stream TEXT, version TEXT, line BLOB, UNIQUE (sha, stream, version))"
        )
        for entry in entries(NUM_COMMITS):
            key = (entry.key.content_sha256, entry.key.stream, entry.key.version)
            database.execute("INSERT OR IGNORE INTO ledger VALUES (?, ?, ?, ?)", (*key, to_line(entry)))
        database.close()
    return float(NUM_COMMITS)


def reading(folder: Path) -> tuple[float, int]:
    """(entries read and verified in a second of CPU when a ledger is opened, entries that a second run adds)."""
    path = folder / "large.jsonl"
    path.write_bytes(b"".join(to_line(entry) for entry in entries(NUM_READ)))
    began = time.process_time()
    ledger = DocumentLedger(path)
    rate = NUM_READ / (time.process_time() - began)
    return rate, ledger.record_many(entries(NUM_READ))


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = alternate(
            {
                "ledger": lambda: ledger_commits(folder),
                "fsync": lambda: fsync_only(folder),
                "sqlite": lambda: sqlite_commits(folder),
                "grouped": lambda: group_commits(folder),
            }
        )
        rate, again = reading(folder)
    speed = {name: median(variant_samples, "per_second") for name, variant_samples in samples.items()}
    ledger_rate, disk = speed["ledger"], speed["fsync"]
    bar = min(LEAST_PER_SECOND, LEAST_OF_FSYNC * disk)
    rows = [
        Row("durable commits/s", ledger_rate, disk, "bare fsync", ledger_rate, bar, ">=", ledger_rate >= bar),
        Row.ratio_at_least("durable commits/s", ledger_rate, speed["sqlite"], "SQLite WAL, FULL", 0.9),
        Row.at_least(f"commits/s in groups of {GROUP}", speed["grouped"], 5_000),
        Row.at_least("entries read and verified per CPU-second", rate, 50_000),
        Row.at_most("entries that a second run adds", again, 0),
    ]
    return finish("document_ledger", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
