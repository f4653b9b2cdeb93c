"""What every text for people is made of: tables, and errors in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from trainyard.errors import TrainyardError


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns padded with spaces: readable, and cut and grep work on it."""
    everything = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in everything) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in everything)  # fmt: skip


def json_text(result: Any) -> str:
    """A result that has no text of its own."""
    return str(result.model_dump_json(indent=2))


def print_error(error: TrainyardError, *, as_json: bool) -> None:
    """An error in words on stderr; with `--json` also as a document on stdout, so that a program always gets one."""
    if as_json:
        print(json.dumps({"error": error.as_dict()}, indent=2))
    lines = [f"{error.code}: {error.what}"]
    lines += [f"  {line}" for line in error.why.splitlines()]
    lines += [f"  Do: {error.do}"] if error.do and error.do not in error.why else []
    print("\n".join(lines), file=sys.stderr)
