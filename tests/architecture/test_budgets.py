"""The budgets a person can hold in the head; the hard numbers fail the build."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("trainyard", "flows", "nodes", "tasks")
MODULE_LINES, FUNCTION_LINES, PARAMETERS, CLASS_FIELDS, FOLDER_FILES, DEPTH = 600, 100, 8, 15, 25, 3
WIDE_FOLDERS = {"axes", "benchmarks", "renderers", "cloud"}
"""Folders of one file a row, which may be as wide as their table."""
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "core", "util", "helper"}
COMPOSITION_SCHEMAS = {"DataSourceConfig", "AiGeneratorConfig", "TrainerConfig", "Hyperparameters", "Settings"}
"""Configs whose fields are a user's own list of settings; each is still at most 16."""


def list_tracked_files() -> list[Path]:
    """What git tracks or would track: the working tree without ignored files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = [REPOSITORY / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file()]


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def sources(*rooms: str) -> list[Path]:
    """The modules of these folders; what the fuzzers read is data."""
    room_names = rooms or ROOMS
    return [
        path
        for path in list_tracked_files()
        if path.suffix == ".py" and path.relative_to(REPOSITORY).parts[0] in room_names and "corpus" not in path.parts
    ]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def format_path(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_modules_are_short() -> None:
    long = {
        format_path(path): count for path in sources() if (count := len(path.read_text().splitlines())) > MODULE_LINES
    }
    assert not long


def test_functions_are_short_and_take_few_parameters() -> None:
    offenders = []
    for path in sources(*ROOMS, "benchmarks", "examples"):
        for node in functions(parse_file(path)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            arguments = node.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in names)
            if length > FUNCTION_LINES or count > PARAMETERS:
                offenders.append(f"{format_path(path)}:{node.name} lines={length} parameters={count}")
    assert not offenders


def test_classes_have_few_fields() -> None:
    offenders = []
    for path in sources():
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(part, ast.AnnAssign) for part in node.body)
                if fields > CLASS_FIELDS + (node.name in COMPOSITION_SCHEMAS):
                    offenders.append(f"{format_path(path)}:{node.name} fields={fields}")
    assert not offenders


def test_folders_are_small_and_shallow() -> None:
    files = Counter(path.parent for path in sources() if path.name != "__init__.py")
    wide = {
        format_path(folder): n for folder, n in files.items() if n > FOLDER_FILES and folder.name not in WIDE_FOLDERS
    }
    deep = [
        format_path(path) for path in sources("trainyard") if len(path.relative_to(REPOSITORY).parts) > 2 + DEPTH + 1
    ]
    assert not wide
    assert not deep


def test_no_shapeless_names() -> None:
    assert not [format_path(path) for path in sources() if {path.stem, *path.parent.parts[-2:]} & FORBIDDEN_NAMES]


def list_imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return ["trainyard" if node.level else str(node.module)]
    return [alias.name for alias in node.names]


def test_a_module_of_ours_is_imported_in_a_function_only_with_a_reason() -> None:
    """A heavy package is imported where it is needed; for one of our modules a comment on the line says why."""
    packages = {*ROOMS, "deployments"}
    offenders = [
        f"{format_path(path)}:{function.name}"
        for path in sources()
        for lines in [path.read_text(encoding="utf-8").splitlines()]
        for function in functions(parse_file(path))
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "  # " not in lines[node.lineno - 1]
        and {name.partition(".")[0] for name in list_imported_names(node)} & packages
    ]
    assert not offenders


def test_no_exception_is_swallowed() -> None:
    offenders = []
    for path in sources(*ROOMS, "tests", "tools", "benchmarks", "examples"):
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(part, ast.Pass) for part in node.body):
                offenders.append(f"{format_path(path)}:{node.lineno}")
    assert not offenders


def test_every_function_says_what_it_returns() -> None:
    offenders = []
    for path in sources(*ROOMS, "tests", "tools", "benchmarks", "examples"):
        for node in functions(parse_file(path)):
            if node.returns is None:
                offenders.append(f"{format_path(path)}:{node.name}")
    assert not offenders


def test_few_mocks() -> None:
    tests = mocks = 0
    for path in (path for path in list_tracked_files() if path.suffix == ".py" and "tests" in path.parts):
        text = path.read_text()
        if path == Path(__file__):
            continue
        tests += sum(node.name.startswith("test_") for node in functions(parse_file(path)))
        mocks += sum(text.count(word) for word in ("mock.patch", "MagicMock", "monkeypatch.setattr"))
    assert tests > 0
    assert mocks / tests <= 0.1


@pytest.mark.parametrize("room", ["spec", "stores"])
def test_light_rooms_stay_light(room: str) -> None:
    """Importing the spec costs 0.4 s; importing torch or Prefect costs 4 s, which the command line would feel."""
    modules = [
        f"trainyard.{room}.{path.stem}"
        for path in sources()
        if path.parts[-3:-1] == ("trainyard", room) and path.stem[0] != "_"
    ]
    heavy = "print(*[name for name in ('torch', 'prefect', 'transformers') if name in sys.modules])"
    program = f"import sys, {', '.join(modules)}; {heavy}"
    import_run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert import_run.stdout.strip() == ""
