"""A ledger on disk: entries once, changes named, keys replaced, disks that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.artifacts.ledger import export, list_entries, prove, rotate, show_entry, verify, witness
from trainyard.app.context import Context
from trainyard.errors import Conflict, Corrupt, NotFound
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.recording import record_step
from trainyard.testing.ledger_faults import run_campaign, simulate


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Twelve entries below the first one, which names the key, in three commits."""
    log = Ledger.at_home(tmp_path)
    for batch in range(3):
        log.append(*({"kind": "trained", "key": f"k{batch}-{n}", "run": f"run-000{batch}"} for n in range(4)))
    return log


def test_an_entry_is_written_once(ledger: Ledger) -> None:
    before = (ledger.folder / "checkpoint").read_bytes()
    (receipt,) = ledger.append({"kind": "trained", "key": "k1-2"})
    assert (receipt.seq, receipt.repeated) == (7, True)
    assert (ledger.folder / "checkpoint").read_bytes() == before
    ledger.index_path.unlink()
    assert ledger.append({"kind": "trained", "key": "k1-2"})[0].repeated


def test_an_entry_is_canonical_json_with_its_number(ledger: Ledger) -> None:
    head = ledger.head()
    assert [head.entry(seq)["seq"] for seq in range(head.size)] == list(range(13))
    data = head.tiles.entry(3)
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert ledger.key_file.stat().st_mode & 0o777 == 0o600


def test_every_flipped_byte_is_noticed_and_its_entry_named(ledger: Ledger) -> None:
    path = ledger.folder / "tile" / "entries" / "000.p" / "13"
    data, ends, at = path.read_bytes(), [], 0
    while at < len(data):
        at += 2 + int.from_bytes(data[at : at + 2], "big")
        ends.append(at)
    assert verify_ledger(ledger).problems == []
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        entry = next(number for number, end in enumerate(ends) if at < end)
        assert entry in [problem.entry for problem in verify_ledger(ledger).problems]
    path.write_bytes(data)
    assert verify_ledger(ledger).problems == []


@pytest.mark.parametrize("name", ["checkpoint", "tile/0/000.p/13", "tile/0/000.p/5", "tile/entries/000.p/9"])
@pytest.mark.parametrize("change", ["flip", "cut", "delete", "double", "empty"])
def test_every_change_of_a_file_is_noticed(ledger: Ledger, name: str, change: str) -> None:
    path = ledger.folder / name
    data = path.read_bytes()
    content = {"flip": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "double": data * 2, "empty": b""}
    if change == "delete":
        path.unlink()
    else:
        path.write_bytes(content[change])
    problems = verify_ledger(ledger).problems
    gone = change == "delete" and name in ("tile/0/000.p/5", "tile/entries/000.p/9")
    assert gone or name in [problem.file for problem in problems]


def test_entries_that_change_places_are_noticed(ledger: Ledger) -> None:
    path = ledger.folder / "tile" / "entries" / "000.p" / "13"
    data = path.read_bytes()
    length = 2 + int.from_bytes(data[:2], "big")
    size = 2 + int.from_bytes(data[length : length + 2], "big")
    first, second = data[length : length + size], data[length + size : length + 2 * size]
    path.write_bytes(data[:length] + second + first + data[length + 2 * size :])
    assert {1, 2} <= {problem.entry for problem in verify_ledger(ledger).problems}


def test_a_log_that_was_put_back_is_noticed(ledger: Ledger) -> None:
    earlier = (ledger.folder / "checkpoint").read_bytes()
    ledger.append({"kind": "trained", "key": "later"})
    (ledger.folder / "checkpoint").write_bytes(earlier)
    assert "it was put back" in verify_ledger(ledger).problems[0].problem


def test_a_foreign_key_signs_nothing(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger.at_home(tmp_path / "other")
    other.append({"kind": "trained", "key": "k"})
    ledger.key_file.write_bytes(other.key_file.read_bytes())
    assert "not signed by the expected key" in verify_ledger(ledger).problems[0].problem
    with pytest.raises(Conflict, match="private key"):
        ledger.append({"kind": "trained", "key": "new"})


def test_a_lost_key_is_replaced_and_the_log_says_so(ledger: Ledger) -> None:
    ledger.key_file.unlink()
    with pytest.raises(Conflict, match="ledger rotate"):
        ledger.append({"kind": "trained", "key": "new"})
    seq = ledger.rotate("the disk broke").seq
    assert ledger.head().entry(seq)["is_signed_by_previous"] is False
    ledger.append({"kind": "trained", "key": "new"})
    assert verify_ledger(ledger).problems == []


def test_nothing_is_added_to_a_log_that_does_not_fit(ledger: Ledger) -> None:
    path = ledger.folder / "tile" / "0" / "000.p" / "13"
    path.write_bytes(bytes(13 * 32))
    with pytest.raises(Corrupt, match="do not fit"):
        ledger.append({"kind": "trained", "key": "new"})


def test_a_clock_that_goes_back_is_in_the_entry(ledger: Ledger) -> None:
    ledger.now = lambda: 1.0
    ledger.append({"kind": "trained", "key": "early"})
    assert ledger.head().entry(13)["clock_behind_s"] > 0
    assert verify_ledger(ledger).problems == []


def test_a_step_that_cannot_be_recorded_says_why(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file")
    assert "not in the ledger" in record_step(tmp_path, "trained", "key")
    assert record_step(tmp_path / "home", "trained", "key", loss=float("nan")) == ""


def test_a_bundle_is_checked_without_the_package(ledger: Ledger, tmp_path: Path) -> None:
    context = Context(Settings(home=tmp_path))
    target = tmp_path / "bundle"
    export(requests.LedgerExportInput(target=target, entries=("3", "run-0002")), context)
    command = [sys.executable, "-I", "-S", "-O", str(target / "verify_ledger.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("is in the log")) == (0, 2), done.stderr
    proof = target / "entry-3.tlog-proof"
    proof.write_text(proof.read_text().replace("index 3", "index 4"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    assert prove(requests.LedgerProveInput(entry="3", since=5), context).kind == "consistency"


def test_a_witness_notices_another_history(ledger: Ledger, tmp_path: Path) -> None:
    other = Context(Settings(home=tmp_path / "witness"))
    own, out = Context(Settings(home=tmp_path)), tmp_path / "cosigned"
    key = witness(requests.LedgerWitnessInput(source=ledger.folder, out=out), other).key
    assert verify(requests.LedgerVerifyInput(witness=(key,)), own).exit_code != 0
    assert witness(requests.LedgerWitnessInput(source=out), own).kept
    ledger.append({"kind": "trained", "key": "more"})
    assert witness(requests.LedgerWitnessInput(source=ledger.folder), other).before == 13
    assert verify(requests.LedgerVerifyInput(witness=(key,)), own).exit_code == 0
    for path in sorted(ledger.folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ledger.append(*({"kind": "trained", "key": f"rewritten {n}"} for n in range(20)))
    with pytest.raises(Corrupt, match="cosigned"):
        witness(requests.LedgerWitnessInput(source=ledger.folder), other)


def test_faults_lose_no_acknowledged_entry() -> None:
    assert [run_campaign(seed).violations for seed in (1, 2, 3)] == [[], [], []]


def test_an_injected_bug_is_found() -> None:
    assert simulate(6, inject="checkpoint-first", processes=1, until_found=True).violations


@pytest.mark.parametrize(
    ("ask", "question"),
    [
        (list_entries, requests.LedgerLogInput()),
        (show_entry, requests.LedgerShowInput(entry="1")),
        (verify, requests.LedgerVerifyInput()),
        (prove, requests.LedgerProveInput(entry="1")),
        (rotate, requests.LedgerRotateInput(because="a lost key")),
    ],
)
def test_a_home_without_a_ledger_is_answered_and_left_alone(tmp_path: Path, ask: Any, question: Any) -> None:
    with pytest.raises(NotFound, match="This home has no ledger yet"):
        ask(question, Context(Settings(home=tmp_path)))
    assert list(tmp_path.iterdir()) == []
