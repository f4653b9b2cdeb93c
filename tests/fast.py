"""`pytest --fast`: the tests without torch, servers and child processes, which a developer can wait for.

A file is left out if what it imports, directly or through other files of the repository, imports one of `HEAVY` at its
top level, or if the file itself imports one of `STARTERS`; of the other files, the tests are left out whose fixtures
build a model or start a server. hypothesis draws `EXAMPLES` examples of each property.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
OWN = ("trainyard", "flows", "nodes", "tasks", "tests", "tools")
HEAVY = frozenset({"torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "prefect", "playwright"})
STARTERS = (
    "subprocess",
    "multiprocessing",
    "trainyard.testing",
    "trainyard.compute.shim",
    "trainyard.compute.supervise",
    "trainyard.data.limited.service",
    "trainyard.data.prompts",
    "trainyard.data.renderers.limited",
    "trainyard.serve.prompt_fields",
    "trainyard.stores.graph.local",
    "trainyard.train.starter",
)
"""What starts processes or servers, or trains; a module counts with those below it."""
EXAMPLES = 10
FIXTURES = frozenset({"tiny_model", "prefect", "jobs"})


def find_file(module: str) -> Path | None:
    """The file of a module of the repository."""
    base_path = REPOSITORY.joinpath(*module.split("."))
    return next((path for path in (base_path.with_suffix(".py"), base_path / "__init__.py") if path.is_file()), None)


def find_imports(body: list[ast.stmt]) -> Iterator[str]:
    """The names of modules that statements import when they run, those in functions and for type checks left out."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try | ast.With):
            yield from find_imports(node.body)


@cache
def read_imports(path: Path) -> frozenset[str]:
    return frozenset(find_imports(ast.parse(path.read_text(encoding="utf-8")).body))


def starts_processes(path: Path) -> bool:
    return any(name == starter or name.startswith(f"{starter}.") for name in read_imports(path) for starter in STARTERS)


def is_heavy(path: Path) -> bool:
    """Whether importing a file imports one of `HEAVY`."""
    seen, waiting = {path}, [path]
    while waiting:
        for name in read_imports(waiting.pop()):
            top = name.partition(".")[0]
            if top in HEAVY:
                return True
            file = find_file(name) if top in OWN else None
            if file and file not in seen:
                seen.add(file)
                waiting.append(file)
    return False


def needs_a_model(item: pytest.Item) -> bool:
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
