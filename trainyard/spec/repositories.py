"""Places in a data worker's repositories, as a chain writes them: `/datasets/NAME[@REVISION]/FILE-OR-FOLDER`."""

from __future__ import annotations

import re
from typing import NamedTuple

PLACE = re.compile(
    r"/?(?P<kind>datasets|models)/(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.*))?"
)
MAIN = "main"


class WorkerPlace(NamedTuple):
    """A file or a folder of a repository at a revision. `path` is empty for the whole repository."""

    kind: str
    name: str
    revision: str
    path: str


def parse_place(text: str) -> WorkerPlace | None:
    """Return the place that a path means; None for one that means none."""
    match = PLACE.fullmatch(text)
    if match is None or any(part in (".", "..") for part in text.split("/")) or "//" in text.rstrip("/"):
        return None
    return WorkerPlace(match["kind"], match["name"], match["revision"] or MAIN, (match["path"] or "").rstrip("/"))
