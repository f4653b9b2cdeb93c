"""Every table of every operation fits the width of a terminal, and cuts nothing that people copy."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.wide_samples import COPIED, PROSE, VARIANTS
from trainyard.operations import tables
from trainyard.operations.table import OPERATIONS
from trainyard.operations.tables import SPARE, WHOLE, cell_width, format_table
from trainyard.surfaces.cli.command import render

pytestmark = pytest.mark.integration

TEXTS = Path(tables.__file__).parent
Calls = list[tuple[str, int, Any, str]]


@contextmanager
def tables_drawn() -> Iterator[Calls]:
    """Collect every call of `table`: file, line, its rows and header, its text."""
    calls: Calls = []

    def on_event(frame: FrameType, event: str, value: Any) -> None:
        if (
            event == "return"
            and frame.f_code is format_table.__code__
            and frame.f_back is not None
            and value is not None
        ):
            caller = frame.f_back if frame.f_back.f_code.co_name != "<listcomp>" else frame.f_back.f_back
            assert caller is not None
            calls.append((caller.f_code.co_filename, frame.f_back.f_lineno, dict(frame.f_locals), value))

    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def render_tables() -> tuple[Calls, set[str]]:
    """Every table of every operation's text for its wide answers, and the operations that have a text for one."""
    all_calls: Calls = []
    rendered = set()
    for name in OPERATIONS:
        for samples in VARIANTS:
            unreal = (KeyError, ValueError, AttributeError, TypeError, IndexError)  # flags together that no answer has
            with tables_drawn() as calls, suppress(*unreal):
                render(name, samples.answer(name))
                rendered.add(name)
            all_calls += calls
    return all_calls, rendered


def call_sites() -> set[tuple[str, int]]:
    """Where the text functions call `table`."""
    return {
        (str(path), node.lineno)
        for path in TEXTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "table"
    }


@pytest.mark.parametrize("columns", [80, 100])
def test_every_table_fits_and_what_is_copied_is_whole(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    calls, rendered = render_tables()
    assert rendered == {*OPERATIONS}, "no answer of these has a text"
    for file, line, values, text in calls:
        wide = [row for row in text.splitlines() if cell_width(row) > columns]
        assert not wide, f"{file}:{line} at {columns}: {wide[0]!r}"
        copied = {
            str(cell)
            for row in values["rows"]
            for name, cell in zip(values["header"], row, strict=True)
            if name in WHOLE and name not in SPARE
        }
        assert all(cell in text for cell in copied), f"{file}:{line} at {columns}: cut {copied}"
    missing = call_sites() - {(file, line) for file, line, *_ in calls}
    assert not missing, f"no wide answer shows the tables of {sorted(missing)}"


def test_a_pipe_keeps_the_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = [COPIED["id"], COPIED["name"], PROSE]
    assert format_table([row], ("id", "name", "message")).splitlines()[1].rstrip() == "  ".join(row).rstrip()
