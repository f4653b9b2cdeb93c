"""Selection of the files and rows of a set. Light: the parent's side of reading imports it, too."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainyard.errors import InvalidInput


@dataclass(frozen=True)
class FileSelection:
    """The files and rows of a place that a node's config selects."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_rows: int | None = None


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether globs select a file: each is compared with the path below the folder and with the file name.

    `*` also matches `/`, and `**/` at the beginning also matches no folder, as in git and pathlib.
    """
    alternatives = (name, f"./{name}", PurePosixPath(name).name)

    def matches(globs: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(text, glob) for text in alternatives for glob in globs)

    return (not include or matches(include)) and not matches(exclude)


def empty_set_error(name: str, why: str) -> InvalidInput:
    """Return the error (`E-DATA-EMPTY`) of a set without rows or documents."""
    return InvalidInput(
        f"{name} contains nothing to read.",
        why=why,
        do="Give a file or a folder with documents or rows (docs/data-sources.md lists the types).",
        code="E-DATA-EMPTY",
    )
