"""Import what a table names, when it is needed: heavy and optional packages stay out of a process until then."""

from __future__ import annotations

import importlib
from typing import Any


def load(path: str) -> Any:
    """The object at `module:name`. Raises `ImportError` or `AttributeError` if it is not there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
