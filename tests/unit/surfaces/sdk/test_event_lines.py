"""A client's lines of a stream of server-sent events, whatever pieces of it arrive."""

from __future__ import annotations

import pytest

from trainyard.surfaces.sdk.events import LineSplitter

STREAM = 'id: 1\r\ndata: {"message": "a\u2028b\u0085c\x0bd"}\n\ndata: e\r\rdata: f\n'
LINES = ["id: 1", 'data: {"message": "a\u2028b\u0085c\x0bd"}', "", "data: e", "", "data: f"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_line_ends_at_line_feeds_and_carriage_returns_alone(size: int) -> None:
    splitter = LineSplitter()
    lines = [line for at in range(0, len(STREAM), size) for line in splitter.feed(STREAM[at : at + size])]
    assert lines == LINES
    assert splitter.rest == ""
