"""Functions of an operator: the settings name them as `FILE.py:function` or `module:function`, a chain only their name.

So a chain is data and never code: which code a name means, the operator of the machine says. The source of a function's
module is part of the key of every result that it takes part in.

An operator's own function that converts a row: the setting `converters` names it, a chain only its name.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.data.quarantine import BadRow
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject

if TYPE_CHECKING:
    from trainyard.settings import Settings


@dataclass(frozen=True)
class FunctionKind:
    """Kind of the functions of one setting, with the words of its errors."""

    word: str
    setting: str
    code: str
    otherwise: str
    """What a chain can do without one."""

    def find_reference(self, name: str, named: Mapping[str, str]) -> str:
        """`FILE.py:function` or `module:function` of a name. Raises `InvalidInput` (`code`)."""
        if name not in named:
            raise InvalidInput(
                f"trainyard.toml has no {self.word} {name!r}.",
                why=f"It has {', '.join(sorted(named)) or 'none'}.",
                do=f'Add `{self.setting} = {{{name} = "/path/to/file.py:function"}}`, or use {self.otherwise}.',
                code=self.code,
            )
        return named[name]

    def digest(self, name: str, named: Mapping[str, str]) -> str:
        """Digest of the source of a function's module, and of which function it is."""
        reference = self.find_reference(name, named)
        source = self.find_source(name, reference.rpartition(":")[0])
        return hashlib.sha256(f"{reference}|".encode() + source.read_bytes()).hexdigest()

    def load(self, name: str, reference: str) -> Callable[..., Any]:
        """Import the module and return its function. Raises `InvalidInput` (`code`)."""
        source, _, function = reference.rpartition(":")
        path = self.find_source(name, source)
        try:
            module = self.import_file(path) if source.endswith(".py") else importlib.import_module(source)
            target: Callable[..., Any] = getattr(module, function)
        except Exception as error:
            raise self.unusable(name, f"{type(error).__name__}: {error}.") from error
        if not callable(target):
            raise self.unusable(name, f"{function} of {source} is not a function.")
        return target

    def find_source(self, name: str, module: str) -> Path:
        """Return the file of a module. Raises `InvalidInput` (`code`) if there is none."""
        if module.endswith(".py"):
            path = Path(module).expanduser()
        else:
            try:
                spec = importlib.util.find_spec(module)
            except ModuleNotFoundError:
                spec = None
            path = Path(spec.origin if spec is not None and spec.origin else "")
        if not path.is_file():
            raise self.unusable(name, f"There is no module {module}.")
        return path

    def import_file(self, path: Path) -> object:
        spec = importlib.util.spec_from_file_location(f"trainyard_{self.word}_{path.stem}", path)
        assert spec is not None, "a .py file has a loader"
        assert spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # a dataclass looks for its module there
        spec.loader.exec_module(module)
        return module

    def unusable(self, name: str, why: str) -> InvalidInput:
        return InvalidInput(
            f"The {self.word} {name!r} cannot be used.",
            why=why,
            do=f"Correct `{self.setting}` in trainyard.toml, or the function that it names.",
            code=self.code,
        )


CONVERTER = FunctionKind("converter", "converters", "E-DATA-FORMAT", "a format of docs/formats.md")
ENVIRONMENT = FunctionKind("environment", "environments", "E-REWARD", "a built-in environment, such as calculator")


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
