"""Import what a table names when it is first used: a process does without heavy and optional packages until then."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any


def load(path: str) -> Any:
    """Return the module, or the object at `module:name`. Raises `ImportError` or `AttributeError` if it is missing."""
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    return attrgetter(name)(found) if name else found
