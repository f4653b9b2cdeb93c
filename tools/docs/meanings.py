"""Meanings of the `E-…` codes and what to do, from `errors.txt`: one line a code.

The message of an error says more: it names the file, the value and the command. `tests/architecture/test_reference.py`
fails where a code of the sources has no line there, or a line has no code.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("errors.txt")


def read_meanings() -> dict[str, tuple[str, str]]:
    """Return code -> (meaning, what to do)."""
    lines = (line.split(" | ") for line in FILE.read_text(encoding="utf-8").splitlines())
    return {code: (meaning, do) for code, meaning, do in lines}
