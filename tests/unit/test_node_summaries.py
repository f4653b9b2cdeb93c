"""The sentences about a training: its time, and the rows that were cut or left out."""

from __future__ import annotations

import pytest

from nodes.summaries import balance, describe_lost_rows, spent


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ({"seconds": 86.0, "expected": 37.0}, ", in 86 s (expected 37 s, +132%)"),
        ({"seconds": 26.0, "expected": 219.0}, ", in 26 s (expected 219 s, -88%)"),
        ({"seconds": 26.0}, ", in 26 s"),
        ({}, ""),
    ],
)
def test_slower_than_expected_is_more(time: dict[str, float], text: str) -> None:
    assert spent(time) == text


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"read": 120, "trained": 120, "truncated": 0}, ""),
        ({"read": 120, "trained": 120, "truncated": 7}, "; 7 of 120 rows cut at max_length"),
        (
            {"read": 120, "trained": 108, "truncated": 7, "dropped_too_long": 12},
            "; 7 of 120 rows cut at max_length; 12 of 120 rows left out: 12 too long",
        ),
        ({"read": 9, "trained": 8, "dropped_truncated": 1}, "; 1 of 9 rows left out: 1 too long"),
    ],
)
def test_rows_that_were_cut_or_left_out_are_in_the_end_line(rows: dict[str, int], text: str) -> None:
    assert describe_lost_rows({"rows": rows}) == text


@pytest.mark.parametrize(
    ("heldout", "text"),
    [
        (1, "8 of 10 sft (2 held out); held out whole: a.md"),
        (2, "8 of 10 sft (2 held out); held out whole: a.md and 1 more document"),
        (4, "8 of 10 sft (2 held out); held out whole: a.md and 3 more documents"),
    ],
)
def test_documents_that_are_not_trained_have_their_names(heldout: int, text: str) -> None:
    facts = {"read": 10, "heldout": {"unseen_documents": 2}, "unseen_names": ["a.md"]}
    assert balance("sft", 8, facts | {"documents": {"heldout": heldout}}) == text


def test_held_out_rows_without_documents_have_no_names() -> None:
    assert balance("sft", 8, {"read": 10, "heldout": {"unseen_documents": 2}}) == "8 of 10 sft (2 held out)"
