"""The rooms of the package, and the share of names in them that say nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tools.binding_names import ROOT

ROOMS = sorted(path.name for path in (ROOT / "trainyard").iterdir() if (path / "__init__.py").is_file())


class CountedName(Protocol):
    """A binding or a function of `tools.binding_names` and `tools.function_names`."""

    @property
    def is_empty(self) -> bool:
        """Whether the name says nothing."""


def measure_share(names: Iterable[CountedName]) -> float:
    """Return the share of names that say nothing, from 0 to 1."""
    empty = [name.is_empty for name in names]
    return sum(empty) / max(1, len(empty))
