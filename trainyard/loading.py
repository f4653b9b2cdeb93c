"""Import what a table names when it is first used: a process does without heavy and optional packages until then."""

from __future__ import annotations

import importlib
from typing import Any


def load(path: str) -> Any:
    """The object at `module:name`. Raises `ImportError` or `AttributeError` if it is not there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
