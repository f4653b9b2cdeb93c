"""What differs between two sets of settings, by dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `group.name` -> value."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping)
        found |= flatten_settings(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return found


def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, value before, value after) of every setting that is not the same; None where there is none.

    Of a variant of another type the types are all: the settings of one are not those of the other.
    """
    old, new = flatten_settings(before), flatten_settings(after)
    changed = [name for name in old | new if old.get(name) != new.get(name)]
    others = tuple(name.removesuffix("type") for name in changed if name.endswith(".type"))
    for name in changed:
        if name.endswith(".type") or not name.startswith(others):
            yield name.removesuffix(".type"), old.get(name), new.get(name)
