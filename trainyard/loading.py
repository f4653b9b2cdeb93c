"""Import what a table names when it is first used: a process does without heavy and optional packages until then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any


def load_object(path: str) -> Any:
    """Return the module, or the object at `module:name`. Raises `ImportError` or `AttributeError` if it is missing."""
    module, name = parse_path(path)
    __import__(module)  # a service asks ten times for each request; the statement's own way is the shortest
    target = sys.modules[module]
    return name(target) if name else target


@cache
def parse_path(path: str) -> tuple[str, Callable[[object], object] | None]:
    """The module, and what gets the object out of it. A service asks for the same few with every request."""
    module, _, name = path.partition(":")
    return module, attrgetter(name) if name else None
