"""The page of axes, from the enums of `spec/axes` and the facts that they carry."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Mapping
from enum import Enum
from types import ModuleType

from docs.generator.markdown import cell, code, page, paragraph, table
from trainyard.spec import axes


def axes_page() -> str:
    parts = []
    for kind in axis_enums():
        note = own_doc(kind)
        parts += [part for part in (f"## {words_of(kind.__name__)}", note, axis_table(kind)) if part]
    introduction = (
        "The words that a setting takes, with the facts that the code keeps about each. Checks, estimates and backends "
        "read the same row."
    )
    return page("Axes", introduction, parts)


def axis_enums() -> list[type[Enum]]:
    """The enums of `spec/axes`, be it a module or a package of modules, by name."""
    found = {kind.__name__: kind for module in axis_modules() for kind in vars(module).values() if is_axis(kind)}
    return [found[name] for name in sorted(found)]


def axis_modules() -> list[ModuleType]:
    names = [f"{axes.__name__}.{one.name}" for one in pkgutil.iter_modules(getattr(axes, "__path__", []))]
    return [axes, *map(importlib.import_module, sorted(names))]


def is_axis(value: object) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Enum)
        and value.__module__.startswith(axes.__name__)
        and len(value) > 0
    )


def own_doc(kind: type[Enum]) -> str:
    bases = {base.__doc__ for base in kind.__mro__[1:]}
    return paragraph(kind.__doc__) if kind.__doc__ not in bases else ""


def words_of(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def axis_table(kind: type[Enum]) -> str:
    rows = {one: getattr(one, "facts", None) for one in kind}
    if not all(dataclasses.is_dataclass(facts) for facts in rows.values()):
        return " ".join(code(one.value) for one in kind)
    names = [field.name for field in dataclasses.fields(next(iter(rows.values())))]  # type: ignore[arg-type]
    columns = ["value", *(name.replace("_", " ") for name in names)]
    return table(
        columns, ([code(one.value), *(fact(getattr(facts, name)) for name in names)] for one, facts in rows.items())
    )


def fact(value: object) -> str:
    """A fact of a row, as a cell."""
    if value in (None, (), frozenset()):
        return "–"
    if isinstance(value, Enum):
        return code(value.value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{fact(key)}: {fact(one)}" for key, one in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        shown = [fact(one) for one in value]
        return ", ".join(shown if isinstance(value, list | tuple) else sorted(shown))
    return cell(str(getattr(value, "name", value)))
