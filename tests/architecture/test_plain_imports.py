"""Our own modules are imported by statements, which type checkers, import-linter and editors read, never by strings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_budgets import REPOSITORY, format_path, parse_file, sources

DOTTED = re.compile(r"(?P<module>[a-z_]\w*(?:\.\w+)+)(?::[\w.]*)?")
PROCESSES = {
    "trainyard/app/plan/workers.py", "trainyard/app/stack/proof.py", "trainyard/app/services.py",
    "trainyard/backends/external/runner.py", "trainyard/backends/programs.py",
    "trainyard/backends/llamacpp/program.py", "trainyard/backends/native/backend.py",
    "trainyard/backends/remote_steps/backend.py", "trainyard/backends/cloud/backend.py",
    "trainyard/backends/native/islands.py",
    "trainyard/backends/sessions/running.py", "trainyard/compute/launcher_supervisor.py",
    "trainyard/compute/services.py",
    "trainyard/data/limited/service.py", "trainyard/data/prompts.py", "trainyard/data/quality/row_schemas.py",
    "trainyard/data/renderers/limited.py", "trainyard/evals/runner.py", "trainyard/evals/selection.py",
    "trainyard/prefect_api/reviving.py",
    "trainyard/serve/children.py", "trainyard/serve/conversion/files.py",
    "trainyard/serve/conversion/merged.py", "trainyard/serve/embedded.py",
    "trainyard/serve/inference_server/commands.py", "trainyard/serve/trial.py",
    "trainyard/stores/graph/local.py", "trainyard/stores/model_configs.py",
    "trainyard/surfaces/access/confined_calls.py", "trainyard/train/starter/build.py",
}  # fmt: skip
"""They name the module that another process runs or imports first."""
ON_DEMAND = {"trainyard/__init__.py", "trainyard/app/runs.py"}
"""The public API and the client of Prefect: what they name imports them, and is imported when it is used."""
DESCRIBED = {"trainyard/backends/choices.py"}
"""The table of automatic choices names the function that decides, for readers; tests resolve the names."""


ALLOWED = PROCESSES | ON_DEMAND | DESCRIBED


def is_own_module(dotted: str) -> bool:
    """Return whether a dotted name, with or without `trainyard.`, is a module of this repository."""
    path = Path(*dotted.split("."))
    return any(
        (root / path).with_suffix(".py").is_file() or (root / path / "__init__.py").is_file()
        for root in (REPOSITORY, REPOSITORY / "trainyard")
    )


def find_module_names(tree: ast.Module) -> Iterator[str]:
    """Yield the strings that name our own modules, except names of loggers."""
    loggers = {
        id(argument) for call in ast.walk(tree) if isinstance(call, ast.Call) and "getLogger" in ast.unparse(call.func)
        for argument in call.args
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loggers:
            match = DOTTED.fullmatch(node.value)
            if match and is_own_module(match["module"]):
                yield node.value


TABLE = "trainyard/operations/"
"""Its rows name what they run."""
PATHS = [path for path in sources() if not format_path(path).startswith(TABLE)]


@pytest.mark.parametrize("text", ['load("app.runs:connect_runs")', 'NAME = "trainyard.app.runs"'])
def test_a_string_with_a_module_is_found(text: str) -> None:
    assert len(list(find_module_names(ast.parse(text)))) == 1


def test_no_string_names_an_own_module() -> None:
    named = {format_path(path): sorted(set(find_module_names(parse_file(path)))) for path in PATHS}
    named = {path: names for path, names in named.items() if names}
    extra = {path: names for path, names in named.items() if path not in ALLOWED}
    assert not extra, "import it by a statement, inside the function with a comment if it is heavy"
    assert not ALLOWED - named.keys(), "these files name no module any more; remove them here"
