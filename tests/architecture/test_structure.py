"""What a reader relies on to find things: one direction of imports, named modules, one class of a name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.architecture.test_budgets import REPOSITORY, ROOMS, format_path, parse_file, sources

LAZY_EXPORTS = {"__version__", "EXPORTS", "__all__", "pkgutil", "__getattr__", "__dir__"}
ALLOWED_NAMES = {"trainyard/__init__.py": LAZY_EXPORTS}
"""The public API is one table of lazy exports (PEP 562)."""


def logic_in(tree: ast.Module, allowed: set[str] = frozenset()) -> list[str]:
    """What an `__init__.py` contains besides its docstring and statements that bind only allowed names."""
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    return [ast.unparse(statement).splitlines()[0] for statement in body if not list_bound_names(statement) <= allowed]


def list_bound_names(statement: ast.stmt) -> set[str]:
    """The names that an assignment, an import or a function binds; its text for any other statement."""
    if isinstance(statement, ast.Assign):
        return {ast.unparse(target) for target in statement.targets}
    if isinstance(statement, ast.Import):
        return {alias.asname or alias.name for alias in statement.names}
    return {statement.name} if isinstance(statement, ast.FunctionDef) else {ast.unparse(statement)}


def find_repeated_classes(trees: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Class name -> the modules that define it, where there is more than one definition."""
    class_files: dict[str, list[str]] = {}
    for name, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                class_files.setdefault(node.name, []).append(name)
    return {name: where for name, where in class_files.items() if len(where) > 1}


def import_cycle(*packages: str) -> str:
    """One cycle of imports between the modules of these packages, `a -> b -> a`; empty where there is none.

    Imports inside functions count; those below `if TYPE_CHECKING` do not: texts name the responses that they format.
    """
    graph = grimp.build_graph(packages[0], *packages[1:], cache_dir=None, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def test_no_modules_import_each_other() -> None:
    assert import_cycle(*ROOMS) == ""


@pytest.mark.parametrize(
    "last",
    [
        "from cyclic import first\n",
        "import cyclic.first\n",
        "from cyclic.first import NAME\n",
        "from . import first\n",
        "def load():\n    from cyclic.first import NAME\n",
    ],
)
def test_a_cycle_is_found(last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cyclic"
    package.mkdir()
    for name, text in {
        "__init__": "", "other": "", "first": "from cyclic import middle, other\nNAME = 1\n",
        "middle": "import cyclic.last\n", "last": last,
    }.items():  # fmt: skip
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    cycle = import_cycle("cyclic").split(" -> ")
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"cyclic.first", "cyclic.middle", "cyclic.last"}


def test_init_files_contain_a_docstring_alone() -> None:
    files = {
        name: logic
        for path in sources()
        if path.name == "__init__.py"
        and (name := format_path(path))
        and (logic := logic_in(parse_file(path), ALLOWED_NAMES.get(name, set())))
    }
    assert not files


@pytest.mark.parametrize(
    "text",
    ["import os\n", "def f():\n    ...\n", "TABLE = {}\n", "class A:\n    ...\n", "from x import y\n", "A: int = 1\n"],
)
def test_logic_in_an_init_file_is_found(text: str) -> None:
    assert logic_in(ast.parse(f'"""Docstring."""\n{text}__version__ = "1"\n'), {"__version__"}) == [
        text.splitlines()[0]
    ]
    assert logic_in(ast.parse('"""Docstring."""\n')) == logic_in(ast.parse("")) == []


def find_room(path: Path) -> str:
    """The room of a module: a folder of `trainyard`, or a top-level folder."""
    return "/".join(path.relative_to(REPOSITORY).parts[:2])


def test_class_names_are_unique_within_a_room() -> None:
    """Jumping to a symbol in an editor leads to one place of the room."""
    for room in sorted({find_room(path) for path in sources()}):
        assert not find_repeated_classes(
            (format_path(path), parse_file(path)) for path in sources() if find_room(path) == room
        )


def test_a_repeated_class_name_is_found() -> None:
    trees = [("a.py", ast.parse("class A: ...\nclass B: ...")), ("b.py", ast.parse("def f():\n    class A: ..."))]
    assert find_repeated_classes(trees) == {"A": ["a.py", "b.py"]}


def test_the_names_of_test_modules_are_unique() -> None:
    """Without packages pytest imports them by name: of two with one name it refuses the second."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
