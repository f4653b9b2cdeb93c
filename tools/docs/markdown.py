"""Markdown: pages, tables and cells."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `python -m tools.docs` from the code. Do not edit. -->"


def page(title: str, introduction: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", NOTE, introduction, *parts]) + "\n"


def table(columns: list[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])


def cell(text: str) -> str:
    """A text as one cell: nothing in it is read as Markdown or HTML except its code spans."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = [
        part if part.startswith("`") else re.sub(r"([*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part).replace("<", "&lt;")
        for part in parts
    ]
    return re.sub("…+", "…", "".join(plain)).replace("|", r"\|")


def code(value: object) -> str:
    return f"`{value}`"


def paragraph(text: str | None) -> str:
    """A docstring as one paragraph for each of its own."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n"))


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def anchor(heading: str) -> str:
    """The fragment by which a heading is linked, as GitHub and MkDocs make it."""
    return heading.lower().replace(".", "").replace(" ", "-")
