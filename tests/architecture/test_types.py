"""`Any` turns the type checker off: it is for values of other libraries, not for our own."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from tests.architecture.test_budgets import parse_file, sources

MOST_PER_THOUSAND = 15.0
BLANK = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip


def count_code_lines(path: Path) -> int:
    """Return the lines of a module without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count_any(tree: ast.AST) -> int:
    """Return how often a module says `Any`, imports excepted."""
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def test_any_is_counted_in_annotations_and_not_in_imports() -> None:
    tree = ast.parse("from typing import Any\ndef read(row: dict[str, Any]) -> Any: ...")
    assert count_any(tree) == 2


def test_any_is_rare() -> None:
    paths = sources("trainyard")
    num_any, lines = sum(count_any(parse_file(path)) for path in paths), sum(map(count_code_lines, paths))
    assert 1000 * num_any / lines <= MOST_PER_THOUSAND, f"{num_any} in {lines:,} lines; use object or a type"
