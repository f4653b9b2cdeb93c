"""What carries out operations in child processes with limits, as surfaces know it."""

from __future__ import annotations

from typing import Any, Protocol


class ConfinedCalls(Protocol):
    """Carries out operations in child processes with limits."""

    def carry_out(self, name: str, request: Any, context: Any) -> Any:
        """The response of an operation. Raises what it raises, `LimitExceeded`, and `CallerLeft`."""
