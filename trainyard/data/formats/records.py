"""A row that remembers which of its keys were read, so that what no parser looked at can be counted by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainyard.json_types import JsonMapping

INDEX = re.compile(r"\[\d+\]")


def is_empty(value: object) -> bool:
    """Whether a value says nothing: null, an empty text, list or object."""
    return not value and not isinstance(value, bool | int | float)


class Record(dict[str, Any]):
    """A row, or an object inside of it. `record[key]` and `record.get(key)` read a key; `in` and `look` do not.

    A parser reads only the keys that it uses: every other key with a value counts as ignored.
    """

    __slots__ = ("parts", "read", "where")

    def __init__(self, values: JsonMapping, where: str = "") -> None:
        super().__init__(values)
        self.where = where
        """The place in the row, as in messages: `messages[2]`."""
        self.read: set[str] = set()
        self.parts: list[Record] = []

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return dict.__getitem__(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return dict.get(self, key, default)

    def look(self, key: str) -> object:
        """Return the value of a key, or None, without reading it."""
        return dict.get(self, key)

    def shows(self, key: str) -> bool:
        """Whether a key has a value that says something."""
        return not is_empty(dict.get(self, key))

    def part(self, values: JsonMapping, where: str) -> Record:
        """Return an object inside of this one, whose keys count with those of the row."""
        inner = Record(values, where)
        self.parts.append(inner)
        return inner

    def unread(self) -> Iterator[str]:
        """Names of the keys that have a value and were not read: `source`, `messages[].score`."""
        for key in self.keys() - self.read:
            if not is_empty(dict.get(self, key)):
                yield f"{INDEX.sub('[]', self.where)}.{key}" if self.where else key
        for inner in self.parts:
            yield from inner.unread()
