"""Does the ledger notice every change, lose nothing when its writers are killed, and cost little?

    python -m benchmarks.ledger [changes] [kills] [speed] [audit]

- changes: each byte of each tile and of the checkpoint of a 200-entry log is flipped; each entry is deleted, doubled,
  swapped with the next one and cut; each file is deleted, emptied and exchanged with another. All are noticed, and a
  changed entry is named.
- kills: three processes append and are killed at random moments, 500 times. What a writer was told is in the log.
- speed: entries a second of 128 threads that share commits, against bare `fsync`s of the same bytes on the same
  disk; and the milliseconds of one append, which are the share of a chain's wall time.
- audit: audited requests a second while the ledger names the newest line twenty times a second, against a service that
  has no ledger. A service does it once a minute.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

from benchmarks.harness import Row, Sample, alternate, finish, median, size
from trainyard.app.access.audit import AuditEntry
from trainyard.app.context import Caller, Context
from trainyard.callbacks import ignore
from trainyard.errors import NotFound
from trainyard.settings import Settings
from trainyard.stores.ledger.audit_stream import commit_audit
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.tiles import pack_entries, unpack_entries
from trainyard.surfaces.invocation import build_request

ENTRIES, KILLS, WRITERS = 200, size(500, 6), 3
FLIP_EVERY = size(1, 97)
THREADS, APPENDS = 128, size(2560, 128)
CHAIN_S, APPENDS_OF_CHAIN = 5.0, 2
"""A chain of two nodes with the smallest training of the tests, and its appends."""
TEXT = "x" * 600
REQUESTS, COVER_EVERY_S = size(8000, 100), 0.05


def make_log(home: Path) -> Ledger:
    ledger = Ledger.at_home(home)
    ledger.append(*({"kind": "trained", "key": f"key-{n}", "run": f"run-{n}", "text": "x" * 60} for n in range(99)))
    ledger.append(*({"kind": "trained", "key": f"key-{n}", "run": f"run-{n}"} for n in range(99, ENTRIES - 1)))
    return ledger


def list_changes(data: bytes, is_bundle: bool) -> Iterator[tuple[str, int | None, bytes]]:
    """Yield (what, number of the entry, changed bytes)."""
    ends = []
    if is_bundle:
        entries, at = unpack_entries(data), 0
        for entry in entries:
            at += 2 + len(entry)
            ends.append(at)
        for number, entry in enumerate(entries):
            before, after = entries[:number], entries[number + 1 :]
            yield "delete", number, pack_entries([*before, *after])
            yield "double", number + 1, pack_entries([*before, entry, entry, *after])
            yield "cut", number, pack_entries([*before, entry[:-1], *after])
            if after:
                yield "swap", number, pack_entries([*before, after[0], entry, *after[1:]])
            yield "truncate", number, pack_entries(before)
    for at in range(0, len(data), FLIP_EVERY):
        changed = bytearray(data)
        changed[at] ^= 1 << random.randrange(8)
        number = next((index for index, end in enumerate(ends) if at < end), None)
        yield "flip", number if is_bundle else None, bytes(changed)
    yield "empty", None, b""
    yield "longer", None, data + b"\0"


def measure_changes() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = make_log(Path(folder))
        assert not verify_ledger(ledger).problems
        files = [path for path in ledger.folder.rglob("*") if path.is_file()]
        files = [path for path in files if "tile" in path.parts or path.name == "checkpoint"]
        changes = missed = unnamed = 0
        for path in files:
            data, is_bundle = path.read_bytes(), "entries" in path.parts
            for what, number, changed in list_changes(data, is_bundle):
                if changed == data:
                    continue
                path.write_bytes(changed)
                problems = verify_ledger(ledger).problems
                changes, missed = changes + 1, missed + (not problems)
                entries = [problem.entry for problem in problems]
                if number is not None and number < ENTRIES and number not in entries:
                    unnamed += 1
                    print(f"{what} of entry {number} in {path.name}: {problems[:2]}")
                elif not problems:
                    print(f"missed: {what} in {path}")
            path.write_bytes(data)
        assert not verify_ledger(ledger).problems
        print(f"{changes:,} changes of {len(files)} files")
    return [Row.at_most("changes that were missed", missed, 0), Row.at_most("entries not named", unnamed, 0)]


WRITER = """
import os, sys
from pathlib import Path
from trainyard.stores.ledger.log import Ledger
ledger = Ledger.at_home(Path(sys.argv[1]))
number = 0
print("ready", flush=True)
while True:
    key = f"{sys.argv[2]}-{number}"
    (receipt,) = ledger.append({"kind": "trained", "key": key, "run": sys.argv[2]})
    os.write(1, f"{receipt.seq} {key}\\n".encode())
    number += 1
"""


def measure_kills() -> list[Row]:
    rng, acknowledged, count, number = random.Random(1), dict[str, int](), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        while count < KILLS:
            writers = []
            for _ in range(WRITERS):
                number += 1
                command = [sys.executable, "-c", WRITER, str(home), f"w{number}"]
                writers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for writer in writers:
                assert writer.stdout is not None
                writer.stdout.readline()
            time.sleep(rng.random() * 0.3)
            for writer in writers:
                time.sleep(rng.random() * 0.02)
                writer.send_signal(signal.SIGKILL)
                count += 1
                assert writer.stdout is not None
                for line in writer.stdout.read().splitlines(keepends=True):
                    if line.endswith(b"\n"):
                        seq, key = line.decode().split()
                        acknowledged[key] = int(seq)
                writer.wait()
                writer.stdout.close()
        ledger = Ledger.at_home(home)
        problems = verify_ledger(ledger).problems
        head = ledger.head()
        keys = [str(head.entry(seq)["key"]) for seq in range(head.size)]
        lost = [key for key, seq in acknowledged.items() if keys[seq] != key]
        began = time.monotonic()
        verify_ledger(ledger)
        print(f"{count} kills, {len(acknowledged):,} acknowledged of {head.size:,}; {time.monotonic() - began:.2f} s")
    return [Row.at_most("acknowledged entries lost", len(lost), 0), Row.at_most("breaks", len(problems), 0)]


def append_in_threads() -> float:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(THREADS) as pool:
        ledger = Ledger.at_home(Path(folder))
        list(pool.map(lambda n: ledger.append({"kind": "trained", "key": f"k{n}", "text": TEXT}), range(APPENDS)))
    return float(APPENDS)


def append_alone() -> float:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.at_home(Path(folder))
        for number in range(APPENDS // 8):
            ledger.append({"kind": "trained", "key": f"k{number}", "text": TEXT})
    return float(APPENDS // 8)


def fsync_only() -> float:
    with tempfile.TemporaryDirectory() as folder:
        descriptor = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(APPENDS):
            os.write(descriptor, TEXT.encode())
            os.fsync(descriptor)
        os.close(descriptor)
    return float(APPENDS)


def answer_requests(home: Path) -> float:
    """Write the two lines of audited requests, as a service does around each."""
    context = Context(Settings(home=home), say=ignore, caller=Caller("ci", remote=True), surface="rest")
    request = build_request("jobs cancel", {"job": "job-000000000000"})
    for _ in range(REQUESTS):
        entry = AuditEntry("jobs cancel", request, context)
        entry.begin()
        entry.end(error=NotFound("There is no such job."))
    return float(REQUESTS)


def answer_alone() -> float:
    with tempfile.TemporaryDirectory() as folder:
        return answer_requests(Path(folder))


def answer_covered() -> float:
    with tempfile.TemporaryDirectory() as folder:
        stop, ledger = Event(), Ledger.at_home(Path(folder))

        def cover() -> None:
            while not stop.wait(COVER_EVERY_S):
                commit_audit(ledger)

        thread = Thread(target=cover)
        thread.start()
        try:
            return answer_requests(Path(folder))
        finally:
            stop.set()
            thread.join()


def measure_audit() -> tuple[list[Row], dict[str, list[Sample]]]:
    variants = {"with the ledger": answer_covered, "without": answer_alone}
    samples = alternate(variants, rounds=5)
    rates = {name: median(samples[name], "per_second") for name in variants}
    row = Row.ratio_at_least("audited requests a second", rates["with the ledger"], rates["without"], "without", 0.8)
    return [row], samples


def main() -> int:
    names = sys.argv[1:] or ["changes", "kills", "speed", "audit"]
    rows = [*(measure_changes() if "changes" in names else ()), *(measure_kills() if "kills" in names else ())]
    samples: dict[str, list[Sample]] = {}
    if "audit" in names:
        audit_rows, samples = measure_audit()
        rows += audit_rows
    if "speed" not in names:
        return finish("ledger", rows, samples)
    variants = {"threads": append_in_threads, "alone": append_alone, "fsync": fsync_only}
    samples |= alternate(variants, rounds=5)
    rates = {name: median(samples[name], "per_second") for name in variants}
    rows.append(Row.ratio_at_least("entries a second", rates["threads"], rates["fsync"], "fsync", 0.5))
    share = APPENDS_OF_CHAIN / rates["alone"] / CHAIN_S
    rows.append(Row.at_most("share of a chain's wall time", share, 0.01))
    return finish("ledger", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
