"""The types of the SDK's methods, `trainyard/api/sdk/surface.pyi`, from the table of operations."""

from __future__ import annotations

import types
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from trainyard.api.operations import OPERATIONS, REQUESTS, VERBS
from trainyard.api.sdk.surface import attribute_of, words_after
from trainyard.loading import load

HEAD = '''"""Types of the operations as methods, written by `python -m docs.generator` from the table of operations."""
'''
TAIL = """
Call = Callable[[str, dict[str, Any]], Any]

class Surface(Operations):
    def __init__(self, call: Call, word: str = "") -> None: ...

def words_after(word: str) -> list[str]: ...
def attribute_of(word: str) -> str: ...
def call_here(name: str, fields: dict[str, Any]) -> Any: ...
def checked_request(name: str, fields: dict[str, Any]) -> Any: ...
def parameter(name: str, field: FieldInfo) -> Parameter: ...

here: Surface
"""


class Imports:
    """The modules that the written types need."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {
            "collections.abc": {"Callable"},
            "typing": {"Any"},
            "inspect": {"Parameter"},
            "pydantic.fields": {"FieldInfo"},
        }

    def text_of(self, kind: Any) -> str:
        """A type as source text; its names are imported."""
        if kind in (None, type(None), Any):
            return "Any" if kind is Any else "None"
        origin = get_origin(kind)
        if origin is Literal:
            self.add("typing", "Literal")
            return f"Literal[{', '.join(map(repr, get_args(kind)))}]"
        if origin is Annotated:
            return self.text_of(get_args(kind)[0])
        if origin is types.UnionType or str(origin) == "typing.Union":
            return " | ".join(self.text_of(one) for one in get_args(kind))
        if origin is not None:
            inner = ", ".join("..." if one is ... else self.text_of(one) for one in get_args(kind))
            return f"{self.text_of(origin)}[{inner}]"
        if kind is list:  # a class with a method of this name hides the type
            self.add("builtins", "list as list_")
            return "list_"
        if kind.__module__ != "builtins":
            self.add(kind.__module__, kind.__name__)
        return str(kind.__name__)

    def add(self, module: str, name: str) -> None:
        self.names.setdefault(module, set()).add(name)

    def lines(self) -> Iterable[str]:
        return (f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.names.items()))


def sdk_types() -> str:
    """The whole file."""
    imports = Imports()
    groups = [part for word in words_after("") if (part := group_text(word, imports))]
    root = class_text("Operations", "", imports, call=False)
    return "\n".join([HEAD + "\n" + "\n".join(imports.lines()), "", *groups, root, TAIL.lstrip()]).rstrip() + "\n"


def group_text(word: str, imports: Imports) -> str:
    """The class of a word that other words follow; "" for a word that is an operation alone."""
    return class_text(class_name(word), word, imports, call=word in OPERATIONS) if words_after(word) else ""


def class_name(word: str) -> str:
    return "".join(part.capitalize() for part in word.replace("-", " ").split()) + "Operations"


def class_text(name: str, word: str, imports: Imports, *, call: bool) -> str:
    lines = [f"class {name}:"]
    if call:
        lines.append(method_text("__call__", word, imports))
    for next_word in words_after(word):
        whole = f"{word} {next_word}".strip()
        if words_after(whole):
            lines += ["    @property", f"    def {attribute_of(next_word)}(self) -> {class_name(whole)}: ..."]
        else:
            lines.append(method_text(attribute_of(next_word), whole, imports))
    return "\n".join(lines) + "\n"


def method_text(name: str, operation: str, imports: Imports) -> str:
    row = OPERATIONS[operation]
    hints = get_type_hints(load(VERBS + row.implementation))
    fields = load(REQUESTS + row.request).model_fields
    given = [
        f"{field}: {imports.text_of(one.annotation)}{'' if one.is_required() else ' = ...'}"
        for field, one in fields.items()
    ]
    parameters = ", ".join(["self", *(["*", *given] if given else [])])
    return f"    def {name}({parameters}) -> {imports.text_of(hints['return'])}: ...  # {row.scope}"


def write_types() -> Path:
    path = Path(__file__).parents[2] / "trainyard/api/sdk/surface.pyi"
    path.write_text(sdk_types(), encoding="utf-8")
    return path
