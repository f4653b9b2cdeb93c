"""What a shape is: one spelling of a row, and the formats that may have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.data.rows import Row
from trainyard.spec.axes.data import DataFormat, Port

Keys = frozenset[str]


@dataclass(frozen=True)
class RowShape:
    """One spelling of a row."""

    name: str
    port: Port
    formats: tuple[DataFormat, ...]
    """The formats that may have it; a reader reports the first where `auto` was asked for."""
    has: Callable[[Keys], bool]
    """Whether a row with these keys has the shape."""
    known: Keys
    """Keys that the shape reads; every other key is ignored and counted."""
    parse: Callable[[Mapping[str, Any]], Row]


def having(*names: str) -> Callable[[Keys], bool]:
    return frozenset(names).issubset
