"""The data source as a whole: several sets, ports, progress, and what a run gets when it fails."""

from __future__ import annotations

import gc
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.reading import json_lines, read_all, read_text, settings_for
from tools.docs.reasons import read_reasons
from trainyard.data.quarantine import BadRow, Balance, Quarantine
from trainyard.data.readers.row_writer import SeenRows
from trainyard.data.rows import (
    ROWS_FILE,
    SCHEMAS,
    DocumentRow,
    LabelledRow,
    Message,
    PreferenceRow,
    SftRow,
    TextRow,
    read_rows,
    to_batch,
    write_rows,
)  # fmt: skip
from trainyard.data.sources import read_source
from trainyard.errors import InvalidInput, Refused
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DataSourceConfig

SFT = {"instruction": "Why?", "output": "Because."}
PAIR = {"prompt": "Why?", "chosen": "Because.", "rejected": "No."}


def test_several_sets_fill_several_ports(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json_lines(SFT, SFT))
    (tmp_path / "b.jsonl").write_text(json_lines(PAIR))
    (tmp_path / "c.txt").write_text("One.\nTwo.\nThree.\n")
    (tmp_path / "d.md").write_text("# Rails")
    sets = {"sft": {"path": "a.jsonl"}, "preference": {"path": "b.jsonl"}, "text": {"path": "c.txt"},
            "documents": {"path": "d.md"}}  # fmt: skip
    results = read_all(tmp_path / "out", settings_for(tmp_path), sets=sets)
    assert {port: len(result.rows) for port, result in results.items()} == {
        Port.SFT: 2, Port.PREFERENCE: 1, Port.TEXT: 3, Port.DOCUMENTS: 1,
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["documents", "preference", "sft", "text"]


def test_a_preference_set_under_sft_gives_its_chosen_side(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json_lines(PAIR))
    result = read_all(tmp_path / "out", settings_for(tmp_path), sets={"sft": {"path": "b.jsonl"}})[Port.SFT]
    (row,) = result.rows
    assert row.messages == [Message("user", "Why?"), Message("assistant", "Because.")]
    assert row.source == "b.jsonl:1"


def test_a_set_named_by_the_wrong_port_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json_lines(SFT))
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: The set 'preference' contains rows for sft .*alpaca"):
        read_all(tmp_path / "out", settings_for(tmp_path), sets={"preference": {"path": "a.jsonl"}})


def test_documents_may_come_as_rows(tmp_path: Path) -> None:
    rows = json_lines({"title": "Rails", "text": "Iron."}, {"text": "# Ties\nWood."})
    result = read_text(tmp_path, rows, "docs.jsonl", format="documents")
    assert [(row.title, row.source) for row in result.rows] == [("Rails", "docs.jsonl:1"), ("Ties", "docs.jsonl:2")]


def test_a_path_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        read_all(tmp_path / "out", settings_for(tmp_path / "data"), path=str(tmp_path))
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_goes_from_0_to_1(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "x" * 2000}, {"role": "assistant", "content": "y"}]
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json_lines(*[{"messages": chat}] * 3000))
    seen: list[tuple[float, str]] = []
    config = DataSourceConfig(sets={"sft": {"path": "a.jsonl"}, "labelled": {"path": "b.jsonl"}})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="E-DATA-FORMAT"):
        read_source(config, tmp_path / "out", settings=settings_for(tmp_path), report=lambda *part: seen.append(part))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert len(fractions) >= 5
    assert fractions[-1] == 0.5
    assert seen[-1][1] == "a.jsonl: 3000 of 3000 rows kept as sft"


def test_garbage_collection_is_restored(tmp_path: Path) -> None:
    read_text(tmp_path, json_lines(SFT))
    assert gc.isenabled()
    gc.disable()
    try:
        read_text(tmp_path, json_lines(SFT))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_report_is_written_beside_the_rows(tmp_path: Path) -> None:
    result = read_text(tmp_path, json_lines(SFT, {**SFT, "id": 1}) + "{\n")
    assert result.report == {
        "compressed": False, "dropped": {"not_json": 1}, "duplicates": 0, "encoding": "utf-8", "files": 1,
        "format": "alpaca", "ignored_keys": {"id": 1}, "kept": 2, "quarantined": 1, "read": 3,
        "shapes": {"alpaca": 2}, "skipped": {},
    }  # fmt: skip
    assert result.facts == result.report


def test_a_balance_that_does_not_add_up_is_a_bug() -> None:
    balance = Balance(read=3, kept_rows=1)
    balance.dropped["not_json"] = 1
    with pytest.raises(AssertionError, match="the balance of a reading does not add up"):
        balance.as_dict()
    balance.dropped["duplicate"] = 1
    assert balance.as_dict()["quarantined"] == 1
    assert balance.as_dict()["duplicates"] == 1


def test_the_quarantine_can_show_any_row(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine.jsonl", Balance())
    quarantine.add("x", 1, 0, BadRow("odd", "half \ud800"), "text \udfff")
    quarantine.add("x", 2, 9, BadRow("odd", "bytes"), b"\xff" * 9000)
    quarantine.close()
    first, second = map(json.loads, (tmp_path / "quarantine.jsonl").read_text().splitlines())
    assert (first["detail"], first["row"]) == ("half \\ud800", "text \\udfff")
    assert len(second["row"]) == 2000


def test_every_reason_for_a_bad_row_is_in_the_manual() -> None:
    repository = Path(__file__).parents[3]
    code = [path.read_text() for path in (repository / "trainyard" / "data").rglob("*.py")]
    reasons = {reason for text in code for reason in re.findall(r'BadRow\("(\w+)"', text)}
    assert len(reasons) > 20
    documented = {reason for _, names, _ in read_reasons() for reason in names}
    assert sorted(reasons - documented) == []


@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12))
def test_seen_rows_are_those_of_a_set(batches: list[list[int]]) -> None:
    seen, values = SeenRows(), set()
    for batch in batches:
        if not batch:
            continue
        # The high half is the same for four values in turn, so the low half has to decide.
        digests = [(value // 4).to_bytes(8, "big") + (value % 4).to_bytes(8, "big") for value in batch]
        fresh = seen.fresh(digests)
        for value, new in zip(batch, fresh.tolist(), strict=True):
            if not new:
                assert value in values
            values.add(value)
    assert len(seen) >= len(values)


def test_every_duplicate_of_many_rows_is_found() -> None:
    chance = random.Random(7)
    seen, values = SeenRows(), set()
    for _ in range(40):
        batch = [
            chance.getrandbits(128) if chance.random() < 0.7 or not values else chance.choice(list(values))
            for _ in range(500)
        ]
        fresh = seen.fresh([value.to_bytes(16, "big") for value in batch])
        expected = []
        for value in batch:
            expected.append(value not in values)
            values.add(value)
        assert np.array_equal(fresh, expected)
    assert len(seen) == len(values)


@pytest.mark.parametrize(
    ("port", "row"),
    [
        (Port.SFT, SftRow([Message("user", "é"), Message("assistant", "", "[]")], "d", "s", "train", "p", "[{}]")),
        (
            Port.PREFERENCE,
            PreferenceRow([Message("user", "a")], [Message("assistant", "b")], [Message("tool", "c")], "d"),
        ),
        (Port.LABELLED, LabelledRow([Message("user", "a")], [Message("assistant", "b")], False, "d", "s")),
        (Port.TEXT, TextRow("words", "d")),
        (Port.DOCUMENTS, DocumentRow("d", "s", "code", "t", "x")),
    ],
)
def test_rows_survive_arrow(tmp_path: Path, port: Port, row: SftRow) -> None:
    assert to_batch([row, row], port).schema == SCHEMAS[port]
    assert write_rows(tmp_path / ROWS_FILE, port, iter([row] * 10_001)) == 10_001
    back = list(read_rows(tmp_path / ROWS_FILE, port))
    assert back[0] == row == back[-1]
    assert write_rows(tmp_path / "none.arrow", port, iter([])) == 0
    assert list(read_rows(tmp_path / "none.arrow", port)) == []


def test_a_held_out_set_lies_beside_the_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json_lines(SFT, SFT))
    (tmp_path / "b.jsonl").write_text(json_lines({"instruction": "Who?", "output": "You."}, {"nothing": 1}))
    result = read_all(
        tmp_path / "out", settings_for(tmp_path), path="a.jsonl", heldout={"path": "b.jsonl"}, max_bad_fraction=0.5
    )[Port.SFT]
    assert [row.messages[0].content for row in result.rows] == ["Why?", "Why?"]
    folder = tmp_path / "out" / "sft" / "heldout"
    (row,) = read_rows(folder / "heldout.arrow", Port.SFT)
    assert row.messages[1].content == "You."
    assert result.facts["held_out_set"]["read"] == 2
    assert len((folder / "quarantine.jsonl").read_text().splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "out" / "sft").iterdir()) == [
        "heldout", "quarantine.jsonl", "report.json", "rows.arrow",
    ]  # fmt: skip


def test_a_held_out_set_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json_lines(PAIR, PAIR))
    (tmp_path / "b.jsonl").write_text(json_lines(SFT, SFT))
    with pytest.raises(InvalidInput, match=r"b\.jsonl"):
        read_all(tmp_path / "out", settings_for(tmp_path), path="a.jsonl", heldout={"path": "b.jsonl"})
