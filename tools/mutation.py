"""`python -m tools.mutation [--sample N] [--seed S]`: do the tests notice when the code that decides is changed?

The refusals, the ports and the balance of the validator are mutated one place at a time (a comparison turned, a
condition negated, a number off by one, a result dropped), each mutant in a forked child that runs the tests of that
code. A mutant that no test notices has survived. The score of each group has to reach 80 %.

It is written here because the refusals are a table at module level: the mutation runners for pytest change only the
bodies of functions, and would leave every row of the table as it is. The sample and its seed are printed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
BAR = 0.8
CPU_SECONDS = 120
"""A mutant that loops for ever is ended, and counts as noticed."""

GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "compat": (
        ["trainyard/spec/compat/data.py", "trainyard/spec/compat/engine.py",
         "trainyard/spec/compat/evaluator_deployer.py",
         "trainyard/spec/compat/run.py", "trainyard/spec/compat/training.py", "trainyard/spec/compat/context.py"],
        ["tests/unit/spec/test_refusals.py", "tests/unit/spec/test_refusals_trainer.py",
         "tests/unit/spec/test_refusals_at_run.py"],
    ),
    "ports": (["trainyard/spec/ports.py"], ["tests/unit/spec/test_ports.py", "tests/unit/spec/test_refusals.py"]),
    "balance": (
        ["trainyard/data/validation.py", "trainyard/data/quality/blocks.py", "trainyard/data/quality/sets.py"],
        ["tests/unit/data/test_validation.py", "tests/unit/data/test_duplicates.py", "tests/unit/data/test_splits.py",
         "tests/unit/data/test_decontamination.py"],
    ),
}  # fmt: skip
"""Group -> (files to change, tests that have to notice)."""

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change: where, in words, and the code of the whole module with it."""

    file: str
    line: int
    text: str
    code: types.CodeType


def turn_comparison(node: ast.Compare) -> None:
    node.ops[0] = TURNED[type(node.ops[0])]()


def swap_and_or(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def change_constant(node: ast.Constant) -> None:
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]


def swap_plus_minus(node: ast.BinOp) -> None:
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()


def return_nothing(node: ast.Return) -> None:
    node.value = ast.Constant(None)


def negate(node: ast.If | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def mutation(node: ast.AST) -> Callable[..., None] | None:
    """The change that fits a node, or None."""
    if isinstance(node, ast.Compare):
        return turn_comparison
    if isinstance(node, ast.BoolOp):
        return swap_and_or
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return change_constant
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return swap_plus_minus
    if isinstance(node, ast.Return) and node.value is not None and not is_none(node.value):
        return return_nothing
    if isinstance(node, ast.If | ast.IfExp):
        return negate
    return None


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def find_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can be changed; annotations and decorators decide nothing."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if mutation(child):
                    yield child
                yield from find_nodes(child)


def mutants(file: str) -> list[Mutant]:
    tree = ast.parse((REPOSITORY / file).read_text())
    mutants = []
    for index, node in enumerate(find_nodes(tree)):
        changed = copy.deepcopy(tree)
        target = list(find_nodes(changed))[index]
        change = mutation(target)
        assert change is not None
        change(target)
        text = f"{ast.unparse(node)[:70]} -> {ast.unparse(target)[:70]}"
        code = compile(ast.fix_missing_locations(changed), str(REPOSITORY / file), "exec")
        mutants.append(Mutant(file, getattr(node, "lineno", 0), " ".join(text.split()), code))
    return mutants


class MutantLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from the given code instead of its file's."""

    def __init__(self, name: str, path: str, code: types.CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, _fullname: str) -> types.CodeType:
        return self.code


class MutantFinder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = mutant.file.removesuffix(".py").replace("/", ".")

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        path = str(REPOSITORY / self.mutant.file)
        return importlib.util.spec_from_file_location(
            fullname, path, loader=MutantLoader(fullname, path, self.mutant.code)
        )


def noticed(mutant: Mutant | None, tests: Sequence[str]) -> bool:
    """Whether the tests fail in a forked child that has the mutant in place of the module."""
    child = os.fork()
    if child == 0:
        run_in_child(mutant, tests)
    _, status = os.waitpid(child, 0)
    return status != 0


def run_in_child(mutant: Mutant | None, tests: Sequence[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    if mutant is not None:
        sys.meta_path.insert(0, MutantFinder(mutant))
    code: int = 1
    try:
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "default", *tests])
    finally:
        os._exit(0 if code == 0 else 1)


def score(group: str, sample: int, seed: int) -> float:
    files, tests = GROUPS[group]
    everything = [mutant for file in files for mutant in mutants(file)]
    sampled = random.Random(seed).sample(everything, min(sample, len(everything)))
    if noticed(None, tests):
        sys.exit(f"{group}: the tests fail without any change; mend them first")
    survived = [mutant for mutant in sampled if not noticed(mutant, tests)]
    for mutant in survived:
        print(f"  survived {mutant.file}:{mutant.line} {mutant.text}")
    value = 1 - len(survived) / len(sampled)
    verdict = "ok" if value >= BAR else "MISSED"
    print(f"{group}: {value:.0%} of {len(sampled)} mutants noticed (of {len(everything)}, seed {seed}): {verdict}")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=50, help="mutants of each group")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", DO_NOT_TRACK="1", OMP_NUM_THREADS="1")
    return 0 if min([score(group, args.sample, args.seed) for group in GROUPS]) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
