"""The page of axes, from the enums of `spec/axes` and the facts that they carry."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from types import ModuleType

from pydantic import BaseModel

from tools.docs.markdown import cell, code, page, paragraph, table
from trainyard.spec import axes
from trainyard.spec.packages import Package

MANY_FACTS = 8
"""Facts above which an axis gets a column for each word."""
MANY_WORDS, MOST_LEFT_OUT = 5, 2
"""An axis of so many words is abbreviated, if so few of them are missing."""
MANY = 1e6


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
    enums = {kind.__name__: kind for module in axis_modules() for kind in vars(module).values() if is_axis(kind)}
    return [enums[name] for name in sorted(enums)]


def axis_modules() -> list[ModuleType]:
    names = [
        f"{axes.__name__}.{module_info.name}" for module_info in pkgutil.iter_modules(getattr(axes, "__path__", []))
    ]
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
    """The words of an axis; with facts a row for each word, or a column for each word if there are many facts."""
    rows = [(member.value, getattr(member, "facts", None)) for member in kind]
    if not all(dataclasses.is_dataclass(facts) for _, facts in rows):
        return " ".join(code(word) for word, _ in rows)
    meanings = meanings_of(type(rows[0][1]))
    if len(meanings) > MANY_FACTS:
        columns = ["fact", "what it is", *(code(word) for word, _ in rows)]
        lines = (
            [named(name), cell(meaning), *(fact(getattr(facts, name)) for _, facts in rows)]
            for name, meaning in meanings.items()
        )
        return table(columns, lines)
    glossary = [f"*{named(name)}*: {cell(meaning)}" for name, meaning in meanings.items() if meaning]
    cells = ([code(word), *(fact(getattr(facts, name)) for name in meanings)] for word, facts in rows)
    return "\n\n".join([table(["value", *map(named, meanings)], cells), *(["\\\n".join(glossary)] if glossary else [])])


def named(fact_name: str) -> str:
    return fact_name.replace("_", " ")


def meanings_of(facts: type) -> dict[str, str]:
    """Name of each fact -> the text below it in the class."""
    (tree,) = ast.parse(inspect.getsource(facts)).body
    assert isinstance(tree, ast.ClassDef)
    meanings = {field.name: "" for field in dataclasses.fields(facts) if field.name != "word"}
    for line, below in pairwise(tree.body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            meanings[line.target.id] = str(getattr(below.value, "value", ""))
    derived = (function for function in tree.body if isinstance(function, ast.FunctionDef) and function.decorator_list)
    return meanings | {function.name: ast.get_docstring(function) or "" for function in derived}


def fact(value: object) -> str:
    """A fact of a row, as a cell."""
    if value in (None, (), frozenset(), {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, type) and issubclass(value, BaseModel):
        return ", ".join(code(name) for name in value.model_fields if name != "type") or "–"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) or value < MANY else f"{value:g}"
    if isinstance(value, Enum | Package):
        return code(value.value if isinstance(value, Enum) else value.name)
    return collection_cell(value) if isinstance(value, Mapping | list | tuple | set | frozenset) else cell(str(value))


def collection_cell(values: Collection[object]) -> str:
    if isinstance(values, Mapping):
        between = ", " if isinstance(next(iter(values)), Enum) else "<br>"
        return collected([*values], between.join(pair(key, item) for key, item in values.items()))
    texts = [*map(fact, values)]
    return collected([*values], ", ".join(sorted(texts) if isinstance(values, set | frozenset) else texts))


def collected(values: Sequence[object], text: str) -> str:
    """`all` or `all but …` for nearly every word of an axis, else the text."""
    kind = type(values[0])
    if not issubclass(kind, Enum) or len(kind) < MANY_WORDS or "(" in text:
        return text
    left = [code(member.value) for member in kind if member not in values]
    return text if len(left) > MOST_LEFT_OUT else f"all but {', '.join(left)}" if left else "all"


def pair(key: object, value: object) -> str:
    """A word with its meaning, if that is not the word itself."""
    if isinstance(key, Enum):
        return fact(key) if key.value == value else f"{fact(key)} ({fact(value)})"
    return f"{code(key)}: {fact(value)}"
