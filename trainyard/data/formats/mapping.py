"""Columns under other names: `columns: {prompt: frage, completion: antwort}` of a data source.

A mapped column is read under the name of its field. A column that is not mapped and has a name that some shape reads is
not read: it counts as an ignored key. `tools: tools` reads an optional field under its own name where a row has it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.data.formats.converters import RowConverter
from trainyard.data.formats.prompted import QUESTION_KEYS
from trainyard.data.formats.shapes import COLUMN_NAMES
from trainyard.data.quarantine import BadRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import COLUMN_FIELDS

MOST_NAMES = 20
READ_NAMES = frozenset({*COLUMN_FIELDS, *COLUMN_NAMES, *QUESTION_KEYS, "reward_model"})
"""Names under which a shape would read a column."""


@dataclass(frozen=True)
class ColumnMapping(RowConverter):
    """Renames the columns of a row to the fields that shapes read."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Field -> column."""

    def __call__(self, record: object) -> object:
        """Return the row with its fields; a bad row stays one."""
        return record if isinstance(record, BadRow) or not isinstance(record, Mapping) else self.function(dict(record))

    def of_sample(self, records: Sequence[object]) -> list[object]:
        """The renamed rows of a sample. Raises `InvalidInput` (`E-DATA-FORMAT`) for a column that none of them has."""
        there = list(dict.fromkeys(key for record in records if isinstance(record, Mapping) for key in record))
        for name, column in self.columns.items():
            optional = name == column and not COLUMN_FIELDS[name]
            if there and column not in there and not optional:
                raise unknown_column(name, column, there)
        return [self(record) for record in records]


def map_columns(columns: Mapping[str, str]) -> ColumnMapping:
    """Return the mapping of a set's columns."""
    fields = {column: name for name, column in columns.items()}

    def rename(row: Mapping[str, object]) -> dict[str, object]:
        return {
            fields.get(key) or (f"{key} (not mapped)" if key in READ_NAMES else key): value
            for key, value in row.items()
        }

    return ColumnMapping("columns", rename, columns)


def unknown_column(name: str, column: str, there: list[str]) -> InvalidInput:
    near = difflib.get_close_matches(column, there, n=1)
    names = ", ".join(key[:40] for key in there[:MOST_NAMES])
    return InvalidInput(
        f"columns.{name}: there is no column {column!r}.",
        why=f"The first rows have: {names}.",
        do=f"Did you mean {near[0]!r}?" if near else "Name one of them.",
        code="E-DATA-FORMAT",
    )
