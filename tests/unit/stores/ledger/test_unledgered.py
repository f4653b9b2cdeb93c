"""Entries that could not be written: kept, named, and added with the next one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.app.artifacts.ledger import list_entries, rotate, verify
from trainyard.app.context import Context
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import record_step
from trainyard.stores.ledger.unledgered import RESERVE_BYTES, UnledgeredFile

VERSION = "default/handbook/v1"


def record(home: Path, key: str, **fields: object) -> str:
    return record_step(home, "published", key, version=VERSION, **fields)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    assert record(tmp_path, "first") == ""
    return tmp_path


def test_a_registration_without_a_key_is_kept_and_added_after_the_rotation(home: Path) -> None:
    context, ledger = Context(Settings(home=home)), Ledger.at_home(home)
    ledger.key_file.unlink()
    for _ in range(2):
        assert "not in the ledger yet" in record(home, "second")
    listed = list_entries(requests.LedgerLogInput(), context)
    assert [(row["version"], row["code"]) for row in listed.unledgered] == [(VERSION, "E-CONFLICT")]
    assert f"not in the ledger yet: published {VERSION}" in requests.ledger_log_text(listed)
    result = verify(requests.LedgerVerifyInput(), context)
    assert (result.problems, "not in the ledger: published" in " ".join(result.notes)) == ((), True)
    rotate(requests.LedgerRotateInput(because="the key is lost"), context)
    assert record(home, "third") == ""
    head = ledger.head()
    assert [head.entry(seq)["key"] for seq in range(3, head.size)] == ["second", "third"]
    assert head.entry(3)["unledgered"]["code"] == "E-CONFLICT"
    assert head.entry(3)["unledgered"]["time"] <= head.entry(3)["time"]
    notes = verify(requests.LedgerVerifyInput(), context).notes
    assert notes == ("added later than their step, with the reason: entries 3",)
    assert "published (late)" in requests.ledger_log_text(list_entries(requests.LedgerLogInput(), context))


FILLING = """
import resource, signal, sys
from pathlib import Path
from trainyard.stores.ledger.recording import record_step
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
print(record_step(Path(sys.argv[1]), "promoted", sys.argv[3], version="default/handbook/v1", text="x" * 900))
"""


def fill(home: Path, most_bytes: int, key: str) -> str:
    """Record a step in a process that may write no file beyond a size, as on a disk that becomes full."""
    command = [sys.executable, "-c", FILLING, str(home), str(most_bytes), key]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_disk_that_becomes_full_in_an_append_loses_nothing(home: Path) -> None:
    for number in range(4):
        assert record(home, f"big {number}", text="x" * 900) == ""
    before = (home / "ledger" / "checkpoint").read_bytes()
    for key in ("full 1", "full 2"):
        assert "E-DISK-FULL" in fill(home, 3000, key)
    assert (home / "ledger" / "checkpoint").read_bytes() == before
    assert verify(requests.LedgerVerifyInput(), Context(Settings(home=home))).problems == ()
    kept = UnledgeredFile.of_ledger(Ledger.at_home(home))
    assert [entry.draft["key"] for entry in kept.read()] == ["full 1", "full 2"]
    assert record(home, "after") == ""
    head = Ledger.at_home(home).head()
    assert [head.entry(seq)["key"] for seq in range(6, head.size)] == ["full 1", "full 2", "after"]
    assert (kept.path.exists(), verify(requests.LedgerVerifyInput(), Context(Settings(home=home))).problems) == (
        False,
        (),
    )


def test_the_reserve_makes_room_for_the_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = UnledgeredFile.of_ledger(Ledger.at_home(home))
    assert kept.reserve.stat().st_size == RESERVE_BYTES
    full, append = OSError(28, "No space left on device"), UnledgeredFile._append

    def append_if_room(self: UnledgeredFile, line: bytes) -> None:
        if self.reserve.exists():
            raise full
        append(self, line)

    monkeypatch.setattr(UnledgeredFile, "_append", append_if_room)
    Ledger.at_home(home).key_file.unlink()
    assert "not in the ledger yet" in record(home, "second")
    assert (kept.reserve.exists(), len(kept.read())) == (False, 1)


def test_a_home_that_cannot_be_written_says_so(home: Path) -> None:
    Ledger.at_home(home).key_file.unlink()
    (home / "access" / "unledgered.jsonl").mkdir()
    assert "could not be kept for later" in record(home, "second")


def test_an_entry_that_is_wrong_itself_is_not_kept(home: Path) -> None:
    assert "is not added later" in record(home, "long", text="x" * 70_000)
    assert UnledgeredFile.of_ledger(Ledger.at_home(home)).read() == []


def test_a_kept_line_that_was_changed_stops_no_entry(home: Path) -> None:
    kept = UnledgeredFile.of_ledger(Ledger.at_home(home))
    row = {"draft": {"kind": "published", "key": "k", "text": "x" * 70_000}, "time": 1.0, "code": "E-CONFLICT"}
    kept.path.write_text(json.dumps(row) + "\n{cut of")
    assert record(home, "second") == ""
    assert kept.path.exists()


def test_an_entry_after_half_a_line_is_kept(home: Path) -> None:
    """A process that was killed while it wrote leaves half a line."""
    ledger = Ledger.at_home(home)
    kept = UnledgeredFile.of_ledger(ledger)
    kept.path.write_bytes(b'{"draft":{"kind":"published","key":"cut"},"ti')
    ledger.key_file.unlink()
    assert "not in the ledger yet" in record(home, "second")
    assert [entry.draft["key"] for entry in kept.read()] == ["second"]
