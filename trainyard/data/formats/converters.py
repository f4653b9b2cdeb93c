"""An operator's own function that converts a row: the setting `converters` names it, a chain only its name.

    # TRAINYARD_HOME/trainyard.toml
    [converters]
    tickets = "/srv/trainyard/tickets.py:convert"      # or package.module:function

    def convert(row: dict) -> dict:                    # any spelling of docs/formats.md
        return {"prompt": row["subject"], "completion": row["reply"]}

It is called in the reading process, under the limits of reading (no network, no programs). A row for which it raises
is a bad row; what it returns is checked like any other row. The source of its module is part of the result's key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.data.functions import CONVERTER
from trainyard.data.quarantine import BadRow
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject

if TYPE_CHECKING:  # pydantic, which a reading process does not need
    from trainyard.settings import Settings

MOST_WORDS = 200


@dataclass(frozen=True)
class RowConverter:
    """A converter with its name in messages."""

    name: str
    function: Callable[[JsonObject], Any]

    def __call__(self, record: object) -> object:
        """Return the function's result for a record. Raises `BadRow` with what it raised."""
        if isinstance(record, BadRow) or not isinstance(record, Mapping):
            return record
        try:
            return self.function(dict(record))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:MOST_WORDS]
            raise BadRow("converter", f"the converter {self.name} raised {words}") from error

    def of_sample(self, records: Sequence[object]) -> list[object]:
        """Return the converted rows of a sample, without those that it refuses."""
        rows = []
        for record in records:
            try:
                rows.append(self(record))
            except BadRow:
                continue
        if records and not rows:
            try:
                self(records[0])
            except BadRow as reason:
                raise InvalidInput(
                    f"The converter {self.name} converts none of the first {len(records)} rows.",
                    why=reason.detail,
                    do="Correct the function, or leave `converter` out.",
                    code="E-DATA-FORMAT",
                ) from reason
        return rows


def find_reference(name: str, settings: Settings) -> str:
    """`FILE.py:function` or `module:function` of a converter. Raises `InvalidInput` (`E-DATA-FORMAT`)."""
    return CONVERTER.find_reference(name, settings.converters)


def converter_digest(name: str, settings: Settings) -> str:
    """Digest of the source of a converter's module, and of which function it is."""
    return CONVERTER.digest(name, settings.converters)


def load_converter(name: str, reference: str) -> RowConverter:
    """Import the module and return its function. Raises `InvalidInput` (`E-DATA-FORMAT`)."""
    return RowConverter(name, CONVERTER.load(name, reference))
