"""Corpora: what counts as a tuple, what counts once, what a snapshot promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.data.corpora import Corpora, parse_tuple, sft_row, split_held_out, write_training_set
from trainyard.data.rows import ROWS_FILE, read_rows
from trainyard.errors import Corrupt, InvalidInput
from trainyard.spec.axes.data import Port

COMMITS = [{"diff": f"+{n}", "message": f"Change {n}"} for n in range(60)]


def test_adding_twice_adds_nothing_and_order_does_not_matter(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    assert corpora.add("engineering", "sft", COMMITS[:5]) == (5, 0)
    assert corpora.add("engineering", "sft", [*reversed(COMMITS[:5]), COMMITS[5]]) == (1, 5)
    assert len(corpora.read("engineering", "sft").tuples) == 6


def test_invalid_lines_are_counted_and_a_torn_one_swallows_nothing(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add("engineering", "sft", COMMITS[:2])
    with corpora.file("engineering").open("ab") as stream:
        stream.write(b'{"diff": 3}\nno json\n\n[1]\n{"diff": "torn')
    corpora.add("engineering", "sft", [COMMITS[2]])
    reading = corpora.read("engineering", "sft")
    assert len(reading.tuples) == 3
    assert [line.line for line in reading.invalid] == [3, 4, 6, 7]
    assert "`diff` is not a string" in reading.invalid[0].reason


@pytest.mark.parametrize(
    ("value", "method", "why"),
    [
        ({"prompt": "?", "shadow": "a", "verdict": "a"}, "dpo", "same text"),
        ({"prompt": "?", "shadow": "a"}, "dpo", "`chosen` is missing"),
        ({"message": "m"}, "sft", "`diff` is missing"),
        ({"messages": [{"role": "user", "content": "x"}]}, "sft", "not the assistant's"),
        ({"diff": "x" * 200_001, "message": "m"}, "sft", "200,001 characters"),
        (
            {"messages": [{"role": "user", "content": "x", "weight": 0, "name": None}]},
            "sft",
            "has turns with weight, and",
        ),
        ([], "sft", "not a JSON object"),
    ],
)
def test_what_is_no_tuple_says_why(value: object, method: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_tuple(value, method)


def test_new_means_not_in_the_last_snapshot(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add("engineering", "sft", COMMITS[:49])
    first = corpora.read("engineering", "sft")
    assert first.new_since(frozenset()) == 49
    snapshot = corpora.snapshot("engineering", first)
    corpora.add("engineering", "sft", COMMITS)
    trained = frozenset(row.digest for row in corpora.open("engineering", "sft", snapshot.sha256))
    assert corpora.read("engineering", "sft").new_since(trained) == 11
    assert corpora.snapshot("engineering", first) == snapshot


def test_a_changed_snapshot_is_refused(tmp_path: Path) -> None:
    corpora = Corpora(tmp_path)
    corpora.add("engineering", "sft", COMMITS[:2])
    snapshot = corpora.snapshot("engineering", corpora.read("engineering", "sft"))
    snapshot.path.write_bytes(b"{}")
    with pytest.raises(Corrupt, match="other bytes than its name"):
        corpora.open("engineering", "sft", snapshot.sha256)


def test_the_gate_has_enough_and_growing_moves_nobody_to_its_side() -> None:
    tuples = [parse_tuple(value, "sft") for value in COMMITS]
    for count in range(30, 60):
        train, apart = split_held_out(tuples[:count], 0.1)
        assert len(apart) == 10
        assert len(train) + len(apart) == count
        trained_later = {row.digest for row in split_held_out(tuples[: count + 1], 0.1)[0]}
        assert {row.digest for row in train} <= trained_later


def test_a_long_diff_leaves_room_for_its_message(tmp_path: Path) -> None:
    long = parse_tuple({"diff": "\n".join(f"+line {n}" for n in range(500)), "message": "Say why."}, "sft")
    row = sft_row(long, 200)
    assert sum(len(turn.content) for turn in row.messages) <= 220
    assert row.messages[-1].content == "Say why."
    assert row.messages[0].content.endswith("…")
    counts = write_training_set([long], "sft", tmp_path, 0.0, 128)
    assert counts == {"train": 1, "heldout": 0}
    assert len(list(read_rows(tmp_path / ROWS_FILE, Port.SFT))) == 1
