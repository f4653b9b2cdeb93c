"""Read questions: with history and line editing on a terminal, one from each line elsewhere."""

from __future__ import annotations

import importlib
import sys

PROMPT = "> "


def read_question() -> str | None:
    """Return the next line that a user types or a pipe contains; None at its end."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    importlib.import_module("readline")  # `input` edits lines and remembers those of this session with it
    try:
        return input(PROMPT)
    except EOFError:
        print()
        return None
