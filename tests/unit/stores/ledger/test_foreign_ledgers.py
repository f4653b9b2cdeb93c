"""Ledgers that should not be here: cut, from the future, of another machine, with another key."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.app.artifacts.ledger import rotate, verify, witness
from trainyard.app.context import Context
from trainyard.errors import Conflict, Corrupt, InvalidInput
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.checking import verify_ledger
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.notes import parse_note, parse_vkey
from trainyard.stores.ledger.witnessing import Witness


def begin(home: Path, *keys: str, time_s: float | None = None) -> Ledger:
    ledger = Ledger.at_home(home)
    if time_s is not None:
        ledger.now = lambda: time_s
    ledger.append(*({"kind": "trained", "key": key} for key in keys))
    return ledger


def context_of(home: Path) -> Context:
    return Context(Settings(home=home))


def test_two_machines_are_not_merged(tmp_path: Path) -> None:
    one, two = begin(tmp_path / "one", "a", "b"), begin(tmp_path / "two", "c", "d")
    for path in (two.folder / "tile").rglob("*"):
        if path.is_file():
            target = one.folder / path.relative_to(two.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    assert "The entries do not give the root" in verify_ledger(one).problems[0].problem
    with pytest.raises(Corrupt, match="do not fit"):
        one.append({"kind": "trained", "key": "e"})
    assert verify_ledger(two).problems == []


def test_a_ledger_of_another_machine_needs_its_key(tmp_path: Path) -> None:
    one, two = begin(tmp_path / "one", "a"), begin(tmp_path / "two", "c")
    shutil.rmtree(one.folder)
    shutil.copytree(two.folder, one.folder)
    problems = verify_ledger(one).problems
    assert "foreign key" in problems[0].problem
    with pytest.raises(Conflict, match="another ledger's"):
        one.append({"kind": "trained", "key": "e"})


def test_a_clock_in_the_future_is_followed_and_told_apart(tmp_path: Path) -> None:
    """An entry from the future does not stop later ones: each says how far its clock is behind."""
    ledger = begin(tmp_path, "future", time_s=4_102_444_800.0)
    ledger.now = lambda: 1_800_000_000.0
    ledger.append({"kind": "trained", "key": "today"})
    head = ledger.head()
    assert head.entry(2)["clock_behind_s"] == pytest.approx(4_102_444_800.0 - 1_800_000_000.0)
    assert verify_ledger(ledger).problems == []
    assert any("from the future" in note for note in verify_ledger(ledger).notes)


def test_a_log_that_is_cut_with_its_index_is_seen_by_a_bundle_and_a_witness(tmp_path: Path) -> None:
    """Without both, a log that was put back looks as it did: the manual says so."""
    home, other = tmp_path / "home", context_of(tmp_path / "witness")
    ledger = begin(home, "a", "b")
    shutil.copytree(ledger.folder, tmp_path / "backup")
    begin(home, "c", "d")
    key = witness(requests.LedgerWitnessInput(source=ledger.folder, out=tmp_path / "cosigned"), other).key
    shutil.rmtree(ledger.folder)
    shutil.copytree(tmp_path / "backup", ledger.folder)
    assert verify_ledger(ledger).problems == []
    with pytest.raises(Corrupt, match="do not begin with the 5"):
        witness(requests.LedgerWitnessInput(source=tmp_path / "cosigned"), context_of(home))
    with pytest.raises(Corrupt, match="do not begin with the 5"):
        witness(requests.LedgerWitnessInput(source=ledger.folder), other)
    assert parse_note((tmp_path / "cosigned").read_bytes()).is_signed_by(parse_vkey(key))


def test_a_rotation_is_in_the_log_and_the_old_key_opens_nothing(tmp_path: Path) -> None:
    ledger = begin(tmp_path, "a")
    old = ledger.private_key()
    assert old is not None
    new = rotate(requests.LedgerRotateInput(because="a copy was found"), context_of(tmp_path))
    entry = ledger.head().entry(new.seq)
    assert (entry["is_signed_by_previous"], entry["because"], entry["before"]) == (
        True, "a copy was found", old.public.vkey,
    )  # fmt: skip
    assert verify(requests.LedgerVerifyInput(key=new.key), context_of(tmp_path)).problems == ()
    assert verify(requests.LedgerVerifyInput(key=old.public.vkey), context_of(tmp_path)).problems
    with pytest.raises(InvalidInput, match="not a public key"):
        verify(requests.LedgerVerifyInput(key="no+key+AAAA"), context_of(tmp_path))


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff\xfe", b"PRIVATE+KEY+name+00000000+AAAA"])
def test_a_damaged_key_is_told_and_replaced(tmp_path: Path, content: bytes) -> None:
    """The error of an append names the rotation, so the rotation has to work."""
    ledger, context = begin(tmp_path, "a"), context_of(tmp_path)
    ledger.key_file.write_bytes(content)
    with pytest.raises(Corrupt, match="ledger rotate"):
        ledger.append({"kind": "trained", "key": "b"})
    result = verify(requests.LedgerVerifyInput(), context)
    assert (result.problems, "no private key that can be read" in result.notes[0]) == ((), True)
    rotate(requests.LedgerRotateInput(because="a bad disk"), context)
    ledger.append({"kind": "trained", "key": "b"})
    result = verify(requests.LedgerVerifyInput(), context)
    assert (result.size, result.problems, result.notes) == (4, (), ())
    assert ledger.head().entry(2)["is_signed_by_previous"] is False


def test_a_damaged_key_of_a_witness_is_told(tmp_path: Path) -> None:
    other = Witness(tmp_path)
    other.key()
    (tmp_path / "access" / "witness.key").write_bytes(b"junk")
    with pytest.raises(Corrupt, match="not a private key of a witness"):
        other.key()


def test_the_first_callers_of_a_witness_get_one_key(tmp_path: Path) -> None:
    for number in range(5):
        other = Witness(tmp_path / f"{number}")
        with ThreadPoolExecutor(8) as pool:
            keys = {pool.submit(other.key) for _ in range(8)}
        assert len({key.result() for key in keys}) == 1
