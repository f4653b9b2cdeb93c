"""Notes about runs: replaced whole, removed by an empty text, and never outside their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import InvalidInput
from trainyard.stores.jobs import NoteStore

RUN = "00000001-0000-4000-8000-000000000001"


def test_a_note_is_replaced_and_removed(tmp_path: Path) -> None:
    notes = NoteStore(tmp_path / "notes")
    assert notes.read(RUN) is None
    notes.write(RUN, "")  # there is none to remove
    notes.write(RUN, " too few steps\n", "ann")
    notes.write(RUN, "twice the steps", "ben")
    note = notes.read(RUN)
    assert note is not None
    assert (note.text, note.author) == ("twice the steps", "ben")
    assert note.updated > 0
    notes.write(RUN, "  ")
    assert notes.read(RUN) is None
    assert list((tmp_path / "notes").iterdir()) == []


@pytest.mark.parametrize("name", ["../tokens", "a/b", "", ".hidden"])
def test_a_note_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-NAME"):
        NoteStore(tmp_path / "notes").write(name, "x")


def test_a_file_that_is_no_note_is_none(tmp_path: Path) -> None:
    notes = NoteStore(tmp_path)
    notes.path(RUN).write_text("{broken")
    assert notes.read(RUN) is None
