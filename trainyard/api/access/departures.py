"""Callers that leave before they have their answer, and what then ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from trainyard.errors import Conflict


class Departure:
    """Whether a caller has left. What works for it registers how it is ended."""

    def __init__(self) -> None:
        self.lock, self.has_left = threading.Lock(), False
        self.ends: list[Callable[[], None]] = []

    def note(self) -> None:
        """Say that the caller has left, and end what works for it."""
        with self.lock:
            self.has_left, ends = True, self.ends
            self.ends = []
        for end in ends:
            end()

    def on_leaving(self, end: Callable[[], None]) -> None:
        """Call `end` when the caller leaves, at once if it has left."""
        with self.lock:
            if not self.has_left:
                return self.ends.append(end)
        end()

    def forget(self, end: Callable[[], None]) -> None:
        """Do not call `end` any more."""
        with self.lock, suppress(ValueError):  # it was called
            self.ends.remove(end)

    def require_caller(self) -> None:
        """Raises `Conflict` (`E-CONFLICT`) once the caller has left; nobody reads it."""
        if self.has_left:
            raise Conflict("The caller has left.", code="E-CONFLICT")


class ConfinedCalls(Protocol):
    """Carries out operations in child processes with limits."""

    def carry_out(self, name: str, request: Any, context: Any) -> Any:
        """The response of an operation. Raises what it raises, and `LimitExceeded`."""
