from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validating import heldout_documents

from trainyard.data.quality.sets import documents_needed, holdout_order

IDS = st.lists(st.text("0123456789abcdef", min_size=1, max_size=6), unique=True, max_size=60)
FRACTION = st.floats(0, 0.99)
MIN_ROWS = st.integers(0, 40)


@given(IDS, FRACTION, MIN_ROWS, st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order(ids: list[str], fraction: float, rows: int, chance: object) -> None:
    shuffled = list(ids)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert heldout_documents(ids, fraction, None, rows) == heldout_documents(shuffled, fraction, None, rows)


@given(IDS, FRACTION, MIN_ROWS)
def test_at_most_half_of_the_documents(ids: list[str], fraction: float, rows: int) -> None:
    held = heldout_documents(ids, fraction, None, rows)
    assert held <= set(ids)
    assert len(held) <= len(ids) // 2


@given(IDS, st.floats(0.001, 0.99), MIN_ROWS, st.data())
def test_share_and_rows_are_both_met_as_far_as_half_allows(
    ids: list[str], fraction: float, rows: int, data: st.DataObject
) -> None:
    counts = {doc_id: data.draw(st.integers(1, 9)) for doc_id in ids}
    held = heldout_documents(ids, fraction, counts, rows)
    if len(held) < len(ids) // 2:
        assert len(held) >= math.floor(fraction * len(ids))
        assert sum(counts[doc_id] for doc_id in held) >= rows


@given(IDS, st.floats(0.001, 0.99), MIN_ROWS)
def test_no_document_more_than_needed(ids: list[str], fraction: float, rows: int) -> None:
    held = sorted(heldout_documents(ids, fraction, None, rows), key=holdout_order)
    if held:
        fewer = len(held) - 1
        assert fewer < math.ceil(fraction * len(ids) - 1e-9) or fewer < rows


@given(IDS, IDS, FRACTION)
def test_documents_keep_their_place_when_others_come(ids: list[str], more: list[str], fraction: float) -> None:
    before = sorted(heldout_documents(ids, fraction), key=holdout_order)
    after = sorted(set(ids) | set(more), key=holdout_order)
    positions = [after.index(doc_id) for doc_id in before]
    assert positions == sorted(positions)


def test_known_choice() -> None:
    ids = [f"{number:016x}" for number in range(30)]
    held = heldout_documents(ids, 0.1)
    assert len(held) == 3
    assert held == set(sorted(ids, key=holdout_order)[:3])
    assert holdout_order("0" * 16) == 4699759868508417046


def test_repetitions_count_as_rows() -> None:
    ids = ["a"] * 10 + ["b"] * 10 + ["c"] * 10 + ["d"] * 10
    assert len(heldout_documents(ids, 0.01, None, 10)) == 1
    assert len(heldout_documents(ids, 0.01, None, 11)) == 2
    assert len(heldout_documents(ids, 0.01, {"a": 5, "b": 5, "c": 5, "d": 5}, 6)) == 2


@pytest.mark.parametrize(
    ("rows", "fraction", "min_rows", "expected"),
    [
        ([1] * 30, 0.1, 0, 3),
        ([1] * 31, 0.1, 0, 4),
        ([1] * 100, 0.1, 20, 20),
        ([1] * 100, 0.1, 10, 10),
        ([5, 5, 5, 5, 5, 5], 0.1, 10, 2),
        ([5, 5, 5, 5, 5, 5], 0.1, 11, 3),
        ([1] * 4, 0.1, 20, 2),
        ([1] * 5, 0.9, 0, 2),
        ([1], 0.1, 20, 0),
        ([], 0.1, 20, 0),
        ([9] * 8, 0.0, 20, 0),
    ],
)
def test_documents_needed(rows: list[int], fraction: float, min_rows: int, expected: int) -> None:
    assert documents_needed(np.array(rows, np.int64), fraction, min_rows) == expected
