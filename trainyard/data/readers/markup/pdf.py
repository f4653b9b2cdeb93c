"""PDF files: the text of each page, with Markdown's marks where size, weight, gaps and signs show the outline.

pypdf reads them; what it repairs is not reported. A PDF has no headings, paragraphs or lists, only words at places: a
line is a heading by its size or weight, a paragraph ends at a wider gap, an item begins with a bullet or a number.
Tables stay lines of words.
"""

from __future__ import annotations

import io
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from statistics import median

import pypdf
from pypdf.errors import PyPdfError

from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.word import DAMAGE

MAX_PAGES = 5000
HEADING_SIZE = 1.12
"""Size of a heading against that of the text."""
HEADING_WORDS = 14
PARAGRAPH_GAP = 1.3
"""Distance of two paragraphs against that of two lines."""
SAME_LINE = 0.25
"""Of the size of a letter: what is nearer is on one line."""
BULLET = re.compile(r"(?:[•◦▪‣●○■–*-]|(?P<number>\d{1,2})[.)])(?:\s+|$)")
FIXED = re.compile(r"mono|courier|consolas|menlo", re.I)
LEAST_REPEATED = 3
"""Pages on which a line at the same place is a header or footer."""
logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each repaired oddity; what counts is the text


@dataclass
class PageLine:
    """A line of a page: words, place in points from the left and the bottom, size of letters, weight and font."""

    text: str
    x: float
    y: float
    size: float
    bold: bool
    fixed: bool


def read_pdf(data: bytes, name: str) -> tuple[str, str]:
    """Return the text of each page; a scanned document without text is a bad row."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadRow("encrypted", "the PDF needs a password")
        if len(reader.pages) > MAX_PAGES:
            raise BadRow("too_large", f"the PDF has {len(reader.pages)} pages, at most {MAX_PAGES} are read")
        pages = [read_lines(page) for page in reader.pages]
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except (PyPdfError, *DAMAGE) as error:
        raise BadRow("unreadable", f"the PDF is damaged ({type(error).__name__}: {error})"[:300]) from error
    pages = drop_repeated(pages)
    text = "\n\n".join(build_blocks(pages)).strip()
    if not text:
        raise BadRow("no_text", "the PDF contains no text; scanned pages need text recognition first")
    first = text.splitlines()[0].lstrip("# ").strip()
    return title.strip() or (first if len(first) <= 100 else ""), text + "\n"


def read_lines(page: pypdf.PageObject) -> list[PageLine]:
    """Return the lines of a page in the order in which they were written; a bullet joins the words next to it."""
    spans: list[PageLine] = []

    def note(text: str, cm: list[float], tm: list[float], font: dict[str, object] | None, size: float) -> None:
        if not text.strip():
            return
        x = tm[4] * cm[0] + tm[5] * cm[2] + cm[4]
        y = tm[4] * cm[1] + tm[5] * cm[3] + cm[5]
        font_name = str((font or {}).get("/BaseFont", ""))
        height = size * hypot(tm[2], tm[3]) * hypot(cm[2], cm[3])
        bold = "bold" in font_name.lower()
        for number, line in enumerate(text.split("\n")):
            if line.strip():
                fixed = bool(FIXED.search(font_name))
                spans.append(PageLine(line, x, y - number * height * 1.2, height or 1.0, bold, fixed))

    page.extract_text(visitor_text=note)
    lines: list[PageLine] = []
    markers: list[PageLine] = []
    for span in spans:
        last = lines[-1] if lines else None
        if BULLET.fullmatch(span.text.strip()):
            markers.append(span)
        elif last is not None and abs(last.y - span.y) < SAME_LINE * span.size and span.x >= last.x:
            joined_code = span.fixed and not last.fixed and "`" not in span.text
            last.text += f"`{span.text.strip()}`" if joined_code else span.text
            last.bold = last.bold and span.bold
            last.size = max(last.size, span.size)
            if last.fixed and not span.fixed:
                last.text, last.fixed = mark_code(last.text, span.text), False
        else:
            lines.append(span)
    for marker in markers:
        nearby = [line for line in lines if abs(line.y - marker.y) < SAME_LINE * 2 * line.size and line.x > marker.x]
        if nearby:
            line = min(nearby, key=lambda line: line.x)
            line.text = f"{marker.text.strip()} {line.text.strip()}"
    return lines


def mark_code(text: str, tail: str) -> str:
    """Return a line that began in the font of code, with marks around what came before its other words."""
    code = text.removesuffix(tail).strip()
    return f"`{code}`{tail}" if code and "`" not in code else text


def drop_repeated(pages: list[list[PageLine]]) -> list[list[PageLine]]:
    """Return the pages without headers, footers and page numbers."""
    counts = Counter((re.sub(r"\d+", "#", line.text.strip()), round(line.y)) for page in pages for line in page)
    return [
        [line for line in page if counts[re.sub(r"\d+", "#", line.text.strip()), round(line.y)] < LEAST_REPEATED]
        for page in pages
    ]


def build_blocks(pages: list[list[PageLine]]) -> Iterator[str]:
    """Yield the headings, paragraphs, items and pieces of code of all pages."""
    lines = [line for page in pages for line in page]
    if not lines:
        return
    letters = Counter[float]()
    for line in lines:
        if not line.fixed:
            letters[round(line.size, 1)] += len(line.text)
    body = (letters or Counter([round(lines[0].size, 1)])).most_common(1)[0][0]
    pairs = [pair for page in pages for pair in pairwise(page)]
    steps = [first.y - second.y for first, second in pairs if 0 < first.y - second.y < 2.5 * body]
    step = median(steps) if steps else 1.2 * body
    sizes = sorted({round(line.size, 1) for line in lines if line.size >= HEADING_SIZE * body}, reverse=True)
    group: list[PageLine] = []
    for page in pages:
        for number, line in enumerate(page):
            before = page[number - 1] if number else (group[-1] if group else None)
            if group and before is not None and begins(line, before, step, first=not number):
                yield block_text(group, body, sizes)
                group = []
            group.append(line)
    if group:
        yield block_text(group, body, sizes)


def begins(line: PageLine, before: PageLine, step: float, *, first: bool) -> bool:
    """Whether a line begins a block."""
    other = line.fixed != before.fixed or abs(line.size - before.size) > 1 or line.bold != before.bold
    if BULLET.match(line.text.strip()) or other:
        return True
    if first:  # of a page: a sentence may continue
        return before.text.rstrip()[-1:] in ".!?:" or not line.text.strip()[:1].islower()
    return not 0 <= before.y - line.y < PARAGRAPH_GAP * max(step, line.size)


def block_text(group: list[PageLine], body: float, sizes: list[float]) -> str:
    """Return the lines of a block with its mark."""
    words = "\n".join(line.text.strip() for line in group)
    first = group[0]
    if all(line.fixed for line in group):
        return "\n".join(["```", *(line.text.rstrip() for line in group), "```"])
    if match := BULLET.match(words):
        mark = f"{match['number']}." if match["number"] else "-"
        return f"{mark} {words[match.end() :]}".replace("\n", "\n    ")
    short = len(words.split()) <= HEADING_WORDS and words[-1:] not in ".,;"
    if first.size >= HEADING_SIZE * body and short:
        level = sizes.index(round(first.size, 1)) + 1 if round(first.size, 1) in sizes else len(sizes)
        return f"{'#' * min(level, 6)} {' '.join(words.split())}"
    if first.bold and short and all(line.bold for line in group) and words[-1:] != ":" and len(group) == 1:
        return f"{'#' * min(len(sizes) + 1, 6)} {words}"
    return words
