"""Import what a table names when it is first used: a process does without heavy and optional packages until then."""

from __future__ import annotations

import pkgutil
from typing import Any


def load(path: str) -> Any:
    """Return the module, or the object at `module:name`. Raises `ImportError` or `AttributeError` if it is missing."""
    return pkgutil.resolve_name(path if ":" in path else f"{path}:")
