"""Functions of an operator: the settings name them as `FILE.py:function` or `module:function`, a chain only their name.

So a chain is data and never code: which code a name means, the operator of the machine says. The source of a function's
module is part of the key of every result that it takes part in.
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

from trainyard.errors import InvalidInput


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
