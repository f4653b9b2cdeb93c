"""Write the types of the SDK's methods, `surface.pyi` and `asynchronous.pyi`, from the table of operations.

Both are built, not committed: `make setup`, `make check` and the build of a wheel write them. Requests are imported,
return types are read from the sources, so that a build needs pydantic and few other packages, and no torch.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from trainyard.operations.table import OPERATIONS
from trainyard.surfaces.sdk.surface import attribute_name, list_words

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "trainyard" / "surfaces" / "sdk"

HEAD = '''"""Types of the operations as methods, written by `python -m tools.docs` from the table of operations."""
'''
TAIL = """
Call = Callable[[str, dict[str, Any]], Any]

class Surface(Operations):
    def __init__(self, call: Call, word: str = "") -> None: ...

def list_words(word: str) -> list[str]: ...
def attribute_name(word: str) -> str: ...
def run_locally(name: str, fields: dict[str, Any]) -> Any: ...
def parameter(name: str, field: FieldInfo) -> Parameter: ...

here: Surface
"""


ASYNC_TAIL = """
class AsyncSurface(AsyncOperations):
    def __init__(self, call: Call, client: AsyncClient | None = None) -> None: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None: ...

async def call_in_thread(name: str, fields: dict[str, Any]) -> Any: ...
async def call_over_http(client: AsyncClient, name: str, fields: dict[str, Any]) -> Any: ...
def connect_async(
    url: str = ..., token: str = ..., *, ca_file: str | None = ..., timeout_s: float = ...
) -> AsyncSurface: ...

aio: AsyncSurface
"""
ASYNC_IMPORTS = {
    "httpx": {"AsyncClient"},
    "trainyard.surfaces.sdk.surface": {"Call"},
    "types": {"TracebackType"},
    "typing": {"Any", "Self"},
}
SYNC_IMPORTS = {
    "collections.abc": {"Callable"}, "inspect": {"Parameter"}, "pydantic.fields": {"FieldInfo"}, "typing": {"Any"}
}  # fmt: skip


class Imports:
    """The modules that the written types need."""

    def __init__(self, needed: Mapping[str, Iterable[str]]) -> None:
        self.names = {module: set(names) for module, names in needed.items()}

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
            return " | ".join(self.text_of(argument) for argument in get_args(kind))
        if origin is not None:
            inner = ", ".join("..." if argument is ... else self.text_of(argument) for argument in get_args(kind))
            return f"{self.text_of(origin)}[{inner}]"
        hidden = kind is list  # by a method of this name
        if hidden or kind.__module__ != "builtins":
            self.add(kind.__module__, "list as list_" if hidden else kind.__name__)
        return "list_" if hidden else str(kind.__name__)

    def add(self, module: str, name: str) -> None:
        self.names.setdefault(module, set()).add(name)

    def lines(self) -> Iterable[str]:
        return (f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.names.items()))


@dataclass(frozen=True)
class Style:
    """Rendering of the classes of a file."""

    word: str
    """First word of the names of its classes."""
    define: str

    def class_name(self, word: str) -> str:
        return self.word + "".join(part.capitalize() for part in word.replace("-", " ").split()) + "Operations"


SYNC, ASYNC = Style("", "def"), Style("Async", "async def")


def sdk_types(style: Style = SYNC) -> str:
    """The whole file."""
    imports = Imports(SYNC_IMPORTS if style is SYNC else ASYNC_IMPORTS)
    groups = [part for word in list_words("") if (part := group_text(word, imports, style))]
    root = class_text(style.class_name(""), "", imports, style)
    tail = TAIL if style is SYNC else ASYNC_TAIL
    return "\n".join([HEAD + "\n" + "\n".join(imports.lines()), "", *groups, root, tail.lstrip()]).rstrip() + "\n"


def group_text(word: str, imports: Imports, style: Style) -> str:
    """The class of a word that other words follow; "" for a word that is an operation alone."""
    return class_text(style.class_name(word), word, imports, style) if list_words(word) else ""


def class_text(name: str, word: str, imports: Imports, style: Style) -> str:
    lines = [f"class {name}:"]
    if word in OPERATIONS:
        lines.append(method_text("__call__", word, imports, style))
    for next_word in list_words(word):
        whole = f"{word} {next_word}".strip()
        if list_words(whole):
            lines += ["    @property", f"    def {attribute_name(next_word)}(self) -> {style.class_name(whole)}: ..."]
        else:
            lines.append(method_text(attribute_name(next_word), whole, imports, style))
    return "\n".join(lines) + "\n"


def method_text(name: str, operation: str, imports: Imports, style: Style) -> str:
    row = OPERATIONS[operation]
    fields = row.request.model_fields
    keyword_texts = [
        f"{field}: {imports.text_of(info.annotation)}{'' if info.is_required() else ' = ...'}"
        for field, info in fields.items()
    ]
    parameters = ", ".join(["self", *(["*", *keyword_texts] if keyword_texts else [])])
    return f"    {style.define} {name}({parameters}) -> {return_type(row.run, imports)}: ...  # {row.scope}"


@cache
def parse_module(module: str) -> ast.Module:
    """Return the syntax tree of a module of this repository."""
    path = REPOSITORY.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def return_type(run: str, imports: Imports) -> str:
    """Return the annotated return type of the function that a row runs; its names are imported."""
    module, _, name = f"trainyard.{run}".partition(":")
    tree = parse_module(module)
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    returns = next(node.returns for node in functions if node.name == name)
    if returns is None:
        raise TypeError(f"{module}:{name} has no return type.")
    if isinstance(returns, ast.Constant) and isinstance(returns.value, str):
        returns = ast.parse(returns.value, mode="eval").body
    origins = import_origins(tree)
    for node in ast.walk(returns):
        if isinstance(node, ast.Name) and (node.id in origins or not hasattr(builtins, node.id)):
            imports.add(*origins.get(node.id, (module, node.id)))
    return ast.unparse(returns)


def import_origins(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return bound name -> (module, text after `import`) of every `from module import name` of a file."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    aliases = [(str(node.module), alias) for node in statements for alias in node.names]
    return {alias.asname or alias.name: (module, ast.unparse(alias)) for module, alias in aliases}


def write_types() -> list[Path]:
    """Write both files and return them."""
    texts = {FOLDER / "surface.pyi": sdk_types(SYNC), FOLDER / "asynchronous.pyi": sdk_types(ASYNC)}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)
