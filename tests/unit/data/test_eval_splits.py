"""Rows that a trainer holds out for its evaluations: chosen by content and seed, equal ones together."""

from __future__ import annotations

import pytest

from trainyard.data.quality.sets import first_rows, row_order
from trainyard.data.rows import Message, SftRow, TextRow


def make_row(question: str, **fields: str) -> SftRow:
    return SftRow([Message("user", question), Message("assistant", "yes")], **fields)


ROWS = [make_row(f"question {n}", doc_id=f"d{n}", source=f"file:{n}") for n in range(1000)]


def test_the_order_is_that_of_the_content_and_the_seed() -> None:
    same = make_row("question 1", doc_id="elsewhere", source="other:9", split="unseen_documents")
    assert row_order(ROWS[1], 42) == row_order(same, 42)
    assert row_order(ROWS[1], 42) != row_order(ROWS[1], 43)
    assert row_order(ROWS[1], 42) != row_order(ROWS[2], 42)
    assert row_order(TextRow("a"), 1) != row_order(TextRow("b"), 1)


def test_wordings_of_one_question_stay_together() -> None:
    first, other = (make_row(text, doc_id="d", pair="p") for text in ("What is it?", "Say what it is."))
    assert row_order(first, 1) == row_order(other, 1)
    assert row_order(first, 1) != row_order(make_row("What is it?", doc_id="e", pair="p"), 1)


@pytest.mark.parametrize(
    ("share", "most", "row_count"), [(0.05, 200, 50), (0.5, 200, 200), (0.5, 1000, 500), (0.0001, 200, 1)]
)
def test_the_share_and_the_most(share: float, most: int, row_count: int) -> None:
    orders = [row_order(row, 42) for row in ROWS]
    chosen_rows = first_rows(orders, share, most)
    assert len(chosen_rows) == row_count
    assert chosen_rows == set(sorted(orders)[:row_count])


def test_something_is_left_on_both_sides() -> None:
    assert len(first_rows([5, 9], 0.01, 200)) == len(first_rows([5, 9], 0.5, 200)) == 1
    assert first_rows([5, 5, 5], 0.5, 200) == set()
    assert first_rows([], 0.5, 200) == set()
