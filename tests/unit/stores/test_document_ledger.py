"""The document ledger: every entry once, whatever dies and whenever."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.errors import Corrupt, InvalidInput, LimitExceeded, Unavailable
from trainyard.stores.documents import POINTS, DocumentKey, DocumentLedger, Entry, content_sha256, from_line, to_line
from trainyard.stores.files import RealFiles
from trainyard.testing.simulated_files import SimulatedFiles

PATH = Path("/night/ledger.jsonl")


def make_entry(number: int, name: str = "", *, version: str = "v1", night: str = "n1") -> Entry:
    key = DocumentKey(content_sha256(str(number).encode()), "meetings", version)
    return Entry(key, name or f"{number}.md", entities=number, relations=1, night=night, at=1000.0 + number)


class Killed(Exception):
    pass


def test_an_entry_is_kept_across_openings(tmp_path: Path) -> None:
    ledger = DocumentLedger(tmp_path / "a" / "ledger.jsonl")
    assert ledger.record(make_entry(1))
    assert not ledger.record(make_entry(1))
    assert ledger.record(replace(make_entry(2), status="quarantined", reason="no JSON"))
    again = DocumentLedger(tmp_path / "a" / "ledger.jsonl")
    assert (
        again.entries()
        == ledger.entries()
        == [make_entry(1), replace(make_entry(2), status="quarantined", reason="no JSON")]
    )
    assert [again.done(make_entry(number).key) for number in (1, 2, 3)] == [True, True, False]
    assert not again.done(make_entry(1, version="v2").key)
    ledger_entry = again.status("2.md")
    assert ledger_entry is not None
    assert ledger_entry.reason == "no JSON"
    assert again.status("3.md") is None


def test_an_edited_document_replaces_and_going_back_is_an_edit_too(tmp_path: Path) -> None:
    ledger = DocumentLedger(tmp_path / "ledger.jsonl")
    first, second = make_entry(1, "same.md"), make_entry(2, "same.md")
    ledger.record_many([first, second])
    assert ledger.current() == [second]
    assert ledger.entries() == [first, second]
    assert ledger.done(first.key)
    assert [ledger.done(ledger_entry.key, "same.md") for ledger_entry in (first, second)] == [False, True]
    back = replace(first, night="n2", at=5000.0)
    assert ledger.record(back)
    assert ledger.current() == [back]
    assert [ledger.done(ledger_entry.key, "same.md") for ledger_entry in (first, second)] == [True, False]


def test_the_same_content_under_another_name_is_known(tmp_path: Path) -> None:
    ledger = DocumentLedger(tmp_path / "ledger.jsonl")
    ledger.record(make_entry(1, "a.md"))
    assert ledger.done(make_entry(1).key, "b.md")
    assert ledger.record(make_entry(1, "b.md"))
    assert (len(ledger.entries()), len(ledger.current())) == (1, 2)


def test_a_quarantined_document_may_be_done_later(tmp_path: Path) -> None:
    ledger = DocumentLedger(tmp_path / "ledger.jsonl")
    ledger.record(replace(make_entry(1), status="quarantined", reason="x" * 9000))
    assert len(ledger.entries()[0].reason) == 2000
    assert ledger.record(make_entry(1))
    assert DocumentLedger(tmp_path / "ledger.jsonl").entries() == [make_entry(1)]


def test_two_ledgers_on_one_file_see_each_other(tmp_path: Path) -> None:
    first, two = DocumentLedger(tmp_path / "ledger.jsonl"), DocumentLedger(tmp_path / "ledger.jsonl")
    assert [first.record(make_entry(1)), two.record(make_entry(1)), two.record(make_entry(2))] == [True, False, True]
    first.refresh()
    assert first.entries() == two.entries()


def test_a_torn_tail_is_cut_and_the_next_entry_stands(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    whole = to_line(make_entry(1)) + to_line(make_entry(2))
    for length in range(len(to_line(make_entry(1))), len(whole), 9):
        path.write_bytes(whole[:length])
        ledger = DocumentLedger(path)
        assert ledger.entries() == [make_entry(1)]
        assert path.read_bytes() == to_line(make_entry(1))
    path.write_bytes(to_line(make_entry(1)) + b"\0" * 50 + b"\n")
    assert DocumentLedger(path).record(make_entry(3))
    assert DocumentLedger(path).entries() == [make_entry(1), make_entry(3)]


def test_damage_amid_valid_lines_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(to_line(make_entry(1)).replace(b"1.md", b"7.md") + to_line(make_entry(2)))
    with pytest.raises(Corrupt, match=r"E-CORRUPT.*number 1"):
        DocumentLedger(path)


def test_names_that_are_no_text_and_entries_that_are_not_whole(tmp_path: Path) -> None:
    ledger = DocumentLedger(tmp_path / "ledger.jsonl")
    assert ledger.record(make_entry(1, "a\udc80\n\u2028.md"))
    assert DocumentLedger(tmp_path / "ledger.jsonl").entries()[0].name == "a?\n\u2028.md"
    with pytest.raises(InvalidInput, match="E-CORRUPT"):
        ledger.record(Entry(DocumentKey("not a hash", "meetings", "v1"), "x"))
    assert from_line(to_line(make_entry(4))[:-1]) == make_entry(4)


def test_killed_at_any_call_no_acknowledged_entry_is_lost() -> None:
    """Rows 9 and 12 of the failure table: the power fails ahead of each call in turn, on 20 different disks."""
    deaths = 0
    for call in range(1, 15):
        for seed in range(20):
            acknowledged, files = run_until(call, seed)
            deaths += acknowledged is not None and len(acknowledged) < 4
            files.before = lambda _call: None
            files.crash()
            ledger = DocumentLedger(PATH, files)
            names = [ledger_entry.name for ledger_entry in ledger.entries()]
            assert names[: len(acknowledged)] == acknowledged
            assert names == [f"{number}.md" for number in range(len(names))]
            ledger.record_many(make_entry(number) for number in range(4))
            assert [ledger_entry.name for ledger_entry in DocumentLedger(PATH, files).entries()] == [
                f"{n}.md" for n in range(4)
            ]
    assert deaths > 150


def run_until(call: int, seed: int) -> tuple[list[str], SimulatedFiles]:
    """Record four entries (the last two as a group) until the given call; what was acknowledged, and the disk."""
    files = SimulatedFiles(seed)
    acknowledged: list[str] = []
    count = iter(range(1, 10_000))

    def die(_call: str) -> None:
        if next(count) == call:
            raise Killed

    files.before = die
    try:
        ledger = DocumentLedger(PATH, files)
        for group in ([0], [1], [2, 3]):
            ledger.record_many(make_entry(number) for number in group)
            acknowledged += [f"{number}.md" for number in group]
    except Killed:
        return acknowledged, files
    return acknowledged, files


class NoFsync(SimulatedFiles):
    def fsync(self, path: Path) -> None:
        """A planted fault: the call that makes it durable is left out."""


def test_without_the_fsync_the_double_loses_entries() -> None:
    lost = 0
    for seed in range(30):
        files = NoFsync(seed)
        DocumentLedger(PATH, files).record(make_entry(1))
        files.crash()
        lost += not DocumentLedger(PATH, files).done(make_entry(1).key)
    assert lost > 5


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "E-DISK-FULL"), (errno.EROFS, "E-DISK-READ-ONLY")])
def test_a_full_disk_is_told_and_leaves_the_ledger_whole(number: int, code: str) -> None:
    for write in (1, 2):
        files = SimulatedFiles(write)
        ledger = DocumentLedger(PATH, files)
        ledger.record(make_entry(1))
        files.fail_at(write, number)
        with pytest.raises((LimitExceeded, Unavailable), match=code):
            ledger.record(make_entry(2))
        assert not ledger.done(make_entry(2).key)
        assert files.read(PATH) == to_line(make_entry(1))
        assert ledger.record(make_entry(2))
        assert DocumentLedger(PATH, files).entries() == [make_entry(1), make_entry(2)]


def test_a_disk_that_cannot_even_take_back_stops_the_ledger() -> None:
    files = SimulatedFiles(3)
    ledger = DocumentLedger(PATH, files)
    ledger.record(make_entry(1))
    files.fail_at(2, errno.EIO)
    files.fail_at(3, errno.EIO)
    for _ in range(2):
        with pytest.raises(Unavailable, match="E-DISK-ERROR"):
            ledger.record(make_entry(2))
    assert DocumentLedger(PATH, files).record(make_entry(3))


PROGRAM = """
import sys
from pathlib import Path
from trainyard.compute.child import faultpoint
from trainyard.stores.documents import DocumentKey, DocumentLedger, Entry, content_sha256
ledger = DocumentLedger(Path(sys.argv[1]), at=faultpoint)
for number in range(5):
    key = DocumentKey(content_sha256(str(number).encode()), "meetings", "v1")
    ledger.record(Entry(key, f"{number}.md", entities=number, relations=1, night="n1", at=1000.0 + number))
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_and_run_again_the_ledger_is_the_same(point: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "ledger.jsonl")]
    killed = subprocess.run(command, env={**os.environ, "TRAINYARD_FAULT": f"{point}#3"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    assert DocumentLedger(tmp_path / "ledger.jsonl").entries() == [make_entry(number) for number in range(5)]
    assert RealFiles().read(tmp_path / "ledger.jsonl") == b"".join(to_line(make_entry(number)) for number in range(5))
