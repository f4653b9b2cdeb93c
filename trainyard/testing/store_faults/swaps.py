"""Put wrong functions in the place of right ones for a while: how the simulators inject bugs that they have to find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Swap = tuple[Any, str, Any]
"""(object, attribute, what is there while the bug is injected)."""


@contextmanager
def swapped(swaps: Sequence[Swap]) -> Iterator[None]:
    """Set each attribute to its other value; the old values come back at the end."""
    kept = [(where, what, getattr(where, what)) for where, what, _ in swaps]
    for where, what, other in swaps:
        setattr(where, what, other)
    try:
        yield
    finally:
        for where, what, own in kept:
            setattr(where, what, own)
