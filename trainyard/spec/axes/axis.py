"""A value of an axis that carries its row: every torch-free fact of the value, in the line that names it.

To add a value: a row in the module of its axis, a function in the code table of the room that carries it out, a test.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self


class AxisValue(StrEnum):
    """The word that users write, with `facts`. A module declares the type of its facts in its subclass."""

    facts: Any

    def __new__(cls, word: str, facts: Any = None) -> Self:
        """Build a member of `NAME = word, facts`; the call `Axis(word)` looks a member up and gives no facts."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.facts = facts
        return member
