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

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.data.quarantine import BadRow
from trainyard.errors import InvalidInput
from trainyard.settings import Settings

MOST_WORDS = 200


@dataclass(frozen=True)
class RowConverter:
    """A converter with its name in messages."""

    name: str
    function: Callable[[dict[str, Any]], Any]

    def __call__(self, record: Any) -> Any:
        """What the function makes of a record. Raises `BadRow` with what it raised."""
        if isinstance(record, BadRow) or not isinstance(record, Mapping):
            return record
        try:
            return self.function(dict(record))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:MOST_WORDS]
            raise BadRow("converter", f"the converter {self.name} raised {words}") from error

    def of_sample(self, records: list[Any]) -> list[Any]:
        """The converted rows of a sample, without those that it refuses."""
        found = []
        for record in records:
            try:
                found.append(self(record))
            except BadRow:
                continue
        if records and not found:
            try:
                self(records[0])
            except BadRow as reason:
                raise InvalidInput(
                    f"The converter {self.name} converts none of the first {len(records)} rows.",
                    why=reason.detail,
                    do="Correct the function, or leave `converter` out.",
                    code="E-DATA-FORMAT",
                ) from reason
        return found


def find_reference(name: str, settings: Settings) -> str:
    """`FILE.py:function` or `module:function` of a converter. Raises `InvalidInput` (`E-DATA-FORMAT`)."""
    if name not in settings.converters:
        raise InvalidInput(
            f"trainyard.toml has no converter {name!r}.",
            why=f"It has {', '.join(sorted(settings.converters)) or 'none'}.",
            do=f'Add `converters = {{{name} = "/path/to/file.py:function"}}`, or use a format of docs/formats.md.',
            code="E-DATA-FORMAT",
        )
    return settings.converters[name]


def converter_digest(name: str, settings: Settings) -> str:
    """Digest of the source of a converter's module, and of which function it is."""
    reference = find_reference(name, settings)
    source = source_of(name, reference.rpartition(":")[0])
    return hashlib.sha256(f"{reference}|".encode() + source.read_bytes()).hexdigest()


def source_of(name: str, module: str) -> Path:
    """The file of a converter's module. Raises `InvalidInput` (`E-DATA-FORMAT`) if there is none."""
    if module.endswith(".py"):
        path = Path(module).expanduser()
    else:
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            spec = None
        path = Path(spec.origin if spec is not None and spec.origin else "")
    if not path.is_file():
        raise unusable(name, f"There is no module {module}.")
    return path


def load_converter(name: str, reference: str) -> RowConverter:
    """Import the module and return its function. Raises `InvalidInput` (`E-DATA-FORMAT`)."""
    place, _, function = reference.rpartition(":")
    path = source_of(name, place)
    try:
        module = import_file(path) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, function)
    except Exception as error:
        raise unusable(name, f"{type(error).__name__}: {error}.") from error
    if not callable(found):
        raise unusable(name, f"{function} of {place} is not a function.")
    return RowConverter(name, found)


def import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"trainyard_converter_{path.stem}", path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks for its module there
    spec.loader.exec_module(module)
    return module


def unusable(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"The converter {name!r} cannot be used.",
        why=why,
        do="Correct `converters` in trainyard.toml, or the function that it names.",
        code="E-DATA-FORMAT",
    )
