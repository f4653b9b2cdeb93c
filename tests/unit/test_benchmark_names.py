"""`make bench` finds every benchmark file, and every one asks its question in its first line."""

from __future__ import annotations

import ast

from benchmarks.__main__ import FOLDER, names

QUESTIONS = {"planner", "generator_client", "document_ledger", "graph_upsert", "extraction"}


def test_the_benchmarks_of_the_night_are_listed() -> None:
    assert set(names()) >= QUESTIONS


def test_every_benchmark_asks_a_question_and_can_be_run() -> None:
    for name in names():
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        assert "?" in (ast.get_docstring(tree) or "").split("\n\n")[0], name
        assert "main" in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, name
