"""The names that a user may have meant by a word: one measure of likeness for names, files and folders."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

MOST, CUTOFF = 3, 0.6
WORSE = 0.15
"""By how much a name may be less like the word than the one that is most like it."""
MOST_ENTRIES = 1_000
"""Entries of a folder that are compared."""


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with a word, then those that are like it, as a whole or in a part between slashes."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.lower(), name)
        for part in name.lower().split("/"):
            folded.setdefault(part, name)
    lower = word.lower()
    beginning = [name for key, name in folded.items() if key.startswith(lower)]
    keys = get_close_matches(lower, folded, n=MOST, cutoff=CUTOFF)
    least = SequenceMatcher(None, keys[0], lower).ratio() - WORSE if keys else 0.0
    like = [folded[key] for key in keys if SequenceMatcher(None, key, lower).ratio() >= least]
    return list(dict.fromkeys([*beginning, *like]))[:MOST]


def nearest_paths(text: str, starts: Iterable[Path]) -> list[str]:
    """Return the paths like one that is not there: entries of its folder, as seen from the first start that has it."""
    path = Path(text)
    for start in starts:
        folder = start / path.parent
        if folder.is_dir():
            entries = (entry.name for _, entry in zip(range(MOST_ENTRIES), folder.iterdir(), strict=False))
            return [str(path.parent / name) for name in nearest(path.name, entries) if not name.startswith(".")]
    return []


def did_you_mean(names: Iterable[str], otherwise: str) -> str:
    """Return what to do: take one of these names, if there are any, or else another sentence."""
    words = " or ".join(map(repr, names))
    return f"Did you mean {words}? {otherwise}".rstrip() if words else otherwise
