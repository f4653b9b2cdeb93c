"""Names that tests import from each other exist: a module that only another suite collects is found here, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.conftest import REPOSITORY

TESTS = REPOSITORY / "tests"


@cache
def parse(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def list_names(path: Path) -> frozenset[str]:
    """Return the names that a module binds, at any depth."""
    names: set[str] = set()
    for node in parse(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return frozenset(names)


def find_module(importer: Path, module: str) -> Path | None:
    """Return the file of a module of the tests: `tests.…`, or one next to its importer."""
    if module.startswith("tests."):
        return REPOSITORY / f"{module.replace('.', '/')}.py"
    neighbour = importer.parent / f"{module}.py"
    return neighbour if "." not in module and neighbour.is_file() else None


def list_missing(path: Path) -> Iterator[str]:
    for node in parse(path):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = find_module(path, node.module)
            if module is not None and module.is_file():
                missing = {alias.name for alias in node.names} - list_names(module)
                yield from (f"{path.relative_to(REPOSITORY)}: {node.module}.{name}" for name in sorted(missing))


def test_names_that_tests_import_from_each_other_exist() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    assert len(paths) > 100
    assert [line for path in paths for line in list_missing(path)] == []


def test_a_missing_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def make_row(): ...\n")
    (tmp_path / "test_rows.py").write_text("from helpers import make_row, make_rows\n")
    assert list_names(tmp_path / "helpers.py") == {"make_row"}
    module = find_module(tmp_path / "test_rows.py", "helpers")
    assert module is not None
    assert {"make_row", "make_rows"} - list_names(module) == {"make_rows"}
