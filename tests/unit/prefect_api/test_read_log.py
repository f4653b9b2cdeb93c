"""Lines of a run's log as people read them."""

from __future__ import annotations

import logging

import pytest

from trainyard.prefect_api.listing import strip_traceback


@pytest.mark.parametrize("text", ["the gate says no", "two\nlines", ""])
def test_the_traceback_of_no_exception_is_left_out(text: str) -> None:
    """As the standard library formats it, where a program logs an exception that there is not."""
    record = logging.LogRecord("engine", logging.ERROR, "", 1, text, (), (None, None, None))
    formatted = logging.Formatter().format(record)
    assert formatted != text
    assert strip_traceback(formatted) == text.rstrip("\n")
    assert strip_traceback(text) == text
