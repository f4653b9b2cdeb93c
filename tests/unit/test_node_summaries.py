"""The sentence about the time of a training."""

from __future__ import annotations

import pytest

from nodes.summaries import spent


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
