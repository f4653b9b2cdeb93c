"""Every operation as a method: `jobs.list(state="running")` is `trainyard jobs list --state running`.

A loop over the table of operations, as the command line is. A method takes the fields of the operation's request by
name and returns its response; both are the models that `--json` prints. `surface.pyi`, which is written from the same
table, has the types for editors and checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from trainyard.app.context import Context
from trainyard.callbacks import ignore
from trainyard.inherited import keep_files_private
from trainyard.operations.table import OPERATIONS, group_lines
from trainyard.settings import settings
from trainyard.surfaces.invocation import check_request, execute_operation
from trainyard.surfaces.sdk.live_output import open_live

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Call = Callable[[str, dict[str, Any]], Any]
"""(operation, fields of its request) -> its response."""


class Surface:
    """The operations whose names begin with `word`, as attributes; a call is the operation `word` itself."""

    def __init__(self, call: Call, word: str = "") -> None:
        self._call, self._word = call, word
        self.__doc__ = OPERATIONS[word].summary if word in OPERATIONS else group_lines().get(word, self.__doc__)

    def __getattr__(self, name: str) -> Surface:
        command = f"{self._word} {name.rstrip('_').replace('_', '-')}".strip()
        if name.startswith("__") or command not in list_known_names():
            raise AttributeError(f"There is no operation {command!r}. Here are: {self._list_names()}.", name=name)
        surface = self.__dict__[name] = Surface(self._call, command)  # the next time it is an attribute like any other
        return surface

    def __dir__(self) -> list[str]:
        return [attribute_name(name) for name in list_words(self._word)]

    def __call__(self, **fields: Any) -> Any:
        if self._word not in OPERATIONS:
            raise TypeError(f"{self._word or 'This'} is a group of operations: {self._list_names()}.")
        return self._call(self._word, fields)

    def __repr__(self) -> str:
        return f"<Trainyard operations: {self._list_names()}>" if dir(self) else f"<operation {self._word}>"

    def _list_names(self) -> str:
        return ", ".join(map(attribute_name, list_words(self._word)))

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the fields of the request, for `help()` and notebooks."""
        if self._word not in OPERATIONS:
            return inspect.Signature()
        fields = OPERATIONS[self._word].request.model_fields
        return inspect.Signature([parameter(name, field) for name, field in fields.items()])


@cache
def list_known_names() -> frozenset[str]:
    """Return the names of operations, and of the groups that they are in."""
    operations = [operation.split() for operation in OPERATIONS]
    return frozenset(" ".join(parts[:count]) for parts in operations for count in range(1, len(parts) + 1))


def parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.annotation)


def list_words(word: str) -> list[str]:
    """Return the words that follow `word` in names of operations, in the order of the table."""
    begins = f"{word} " if word else ""
    return list(
        dict.fromkeys(
            operation.removeprefix(begins).split()[0] for operation in OPERATIONS if operation.startswith(begins)
        )
    )


def attribute_name(word: str) -> str:
    """Return the word as a Python name: `delete-version` is `delete_version`, `import` is `import_`."""
    name = word.replace("-", "_")
    return f"{name}_" if name in ("import",) else name


def run_locally(name: str, fields: Mapping[str, Any]) -> Any:
    """Carry out an operation in this process, with the settings of this machine. Progress is not printed; a notebook
    shows a run that is watched.

    Raises `InvalidInput` (`E-PARAMETER`) for a field that the operation does not take, and the operation's errors.
    """
    keep_files_private()
    request = check_request(name, fields, name)
    live = open_live(name, fields)
    context = Context(settings(), say=ignore, on_progress=live.note_event if live else ignore)
    result = execute_operation(name, request, context)
    if live:
        live.end(result)
    return result


here = Surface(run_locally)
"""The operations in this process."""
