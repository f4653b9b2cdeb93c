"""Which cases of one mechanism run by default: `make test` has a budget, and `make test-all` runs every case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def choose_by_default(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters for `parametrize`: those in `quick` as they are, the others marked slow."""
    quick_values = list(quick)
    return [value if value in quick_values else slow(value) for value in values]


def slow(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
