"""Long documents in parts that a model reads: cut at headings, else where a paragraph, a record or a line begins.

Nothing is left out: without overlap, the parts joined are the document. With overlap, each part after the first begins
with the end of the one before it, so that a fact that spans a cut is whole in one of them. The same text gives the same
parts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import NamedTuple

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+\S")
FENCE = re.compile(r" {0,3}(```|~~~)")
UNDERLINE = re.compile(r" {0,3}(=|-){3,}[ \t]*$")
PARAGRAPH, LINE = 7, 10
"""Ranks after the six levels of headings; a line's rank grows with its indentation, so records are cut between."""
MOST_INDENTATION = 40


class Boundary(NamedTuple):
    """Boundary at which a part may begin; the lower the rank, the better."""

    start: int
    rank: int


def split_document(text: str, most: int, overlap: int = 0) -> tuple[str, ...]:
    """Return the parts of a text, each of at most `most` characters; a part of blank lines alone is left out."""
    return tuple(text[start:end] for start, end in find_parts(text, most, overlap))


def find_parts(text: str, most: int, overlap: int = 0) -> list[tuple[int, int]]:
    """(start, end) of each part in the text. At most `overlap` characters of a part are the end of the one before."""
    if len(text) <= most:
        return [(0, len(text))]
    boundaries = find_boundaries(text)
    starts = [boundary.start for boundary in boundaries]
    cuts = find_cuts(text, most - overlap, boundaries, starts)
    return [(extend_back(text, starts, start, overlap), end) for start, end in cuts]


def find_cuts(text: str, most: int, boundaries: list[Boundary], starts: list[int]) -> list[tuple[int, int]]:
    """(start, end) of parts that follow each other; what is blank is left out."""
    parts: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > most:
        window = boundaries[bisect_right(starts, start) : bisect_right(starts, start + most)]
        # Without one after the last blank of a line that is too long; in the middle of it when it has none.
        blank = max(text.rfind(" ", start, start + most), text.rfind("\t", start, start + most))
        end = best_cut(window, start, most) or (blank + 1 if blank > start else start + most)
        parts.append((start, end))
        start = end
    return [(start, end) for start, end in (*parts, (start, len(text))) if text[start:end].strip()]


def extend_back(text: str, starts: list[int], start: int, overlap: int) -> int:
    """Where a part begins that repeats at most `overlap` characters: at a line, else at a word, else anywhere."""
    earliest = max(0, start - overlap)
    lines = starts[bisect_left(starts, earliest) : bisect_left(starts, start)]
    if lines:
        return lines[0]
    blank = text.find(" ", earliest, start)
    return earliest if blank < 0 else blank + 1


def find_boundaries(text: str) -> list[Boundary]:
    """Return the beginning of every line, ranked: headings by level, then paragraphs, then lines by indentation."""
    lines = text.splitlines(keepends=True)
    boundaries: list[Boundary] = []
    position, fence, blank = 0, "", True
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        rank = PARAGRAPH if blank else LINE + min(len(line) - len(line.lstrip()), MOST_INDENTATION)
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and (heading := HEADING.match(line)):
            rank = len(heading[1])
        elif not fence and blank and line.strip() and (underline := UNDERLINE.match(below)):
            rank = 1 if underline[1] == "=" else 2
        boundaries.append(Boundary(position, rank))
        position, blank = position + len(line), not line.strip()
    return boundaries


def best_cut(window: list[Boundary], start: int, most: int) -> int | None:
    """The last of the best boundaries, of those in the second half of what fits if there is a heading or no other."""
    second = [boundary for boundary in window if boundary.start > start + most // 2]
    headings = [boundary for boundary in window if boundary.rank < PARAGRAPH]
    for choice in ([boundary for boundary in second if boundary.rank < PARAGRAPH], headings, second, window):
        if choice:
            return min(choice, key=lambda boundary: (boundary.rank, -boundary.start)).start
    return None
