"""`make bench` finds every benchmark file, and every one asks its question in its first line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import checkouts
from benchmarks.__main__ import FOLDER, names
from benchmarks.gpu import __main__ as gpu

QUESTIONS = {"planner", "generator_client", "document_ledger", "graph_upsert", "extraction"}


def test_the_benchmarks_of_the_night_are_listed() -> None:
    assert set(names()) >= QUESTIONS


def test_every_benchmark_asks_a_question_and_can_be_run() -> None:
    for path in [FOLDER / f"{name}.py" for name in names()] + [FOLDER / "gpu" / f"{name}.py" for name in gpu.NAMES]:
        tree, name = ast.parse(path.read_text(encoding="utf-8")), path.stem
        assert "?" in (ast.get_docstring(tree) or "").split("\n\n")[0], name
        assert "main" in {function.name for function in tree.body if isinstance(function, ast.FunctionDef)}, name


def test_checkouts_are_measured_forwards_and_backwards() -> None:
    measured_paths: list[Path] = []

    def measure(path: Path) -> float:
        measured_paths.append(path)
        return float(len(measured_paths))

    before, after = Path("before"), Path("after")
    assert checkouts.rounds_of((before, after), measure, rounds=2) == [[1.0, 4.0], [2.0, 3.0]]
    assert measured_paths == [before, after, after, before]


@pytest.mark.parametrize(("factor", "slower"), [(0.9, True), (1.0, False), (1.1, False)])
def test_a_slower_checkout_is_found_by_its_interval(factor: float, slower: bool) -> None:
    before = [100.0, 101.0, 99.0, 100.5, 99.5]
    ratio, low, high = checkouts.interval(before, [factor * rate for rate in before])
    assert ratio == pytest.approx(factor)
    assert low <= ratio <= high
    assert (high < checkouts.LEAST) is slower


def test_each_compared_benchmark_exists() -> None:
    assert set(checkouts.VARIANTS) <= set(names())
