"""The text of an HTML page with Markdown's marks: headings, nested and numbered lists, quotations, tables and code.

One pass over the elements and one over the lines: to insert marks into the tree would search the siblings of each
element, and a page of a megabyte is read in a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bs4 import BeautifulSoup
from bs4.element import NavigableString, PageElement, PreformattedString, Tag

BLOCKS = ["p", "div", "section", "article", "ul", "ol", "dl", "dt", "dd", "table", "blockquote", "figure", "header"]
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
CODE = ("code", "kbd", "samp", "tt")
NOT_IN_A_CELL = ["table", "pre", *HEADINGS]
"""Elements that a cell of data has not; a page that is laid out by a table has them in its cells."""
ITEM, QUOTE, CLOSE, PRE, END_PRE = "\x01", "\x02", "\x03", "\x04", "\x05"
"""What begins and ends an indented item, a quotation and preformatted lines, until the lines are written."""
CONTROLS = re.compile("([\x01-\x05\n])")
BULLET = re.compile(r"\s*(?:-|\d+\.) ?")
UNSAFE = re.compile("[\x01-\x05]")
INDENT = {ITEM: "    ", QUOTE: "> "}
MARKS = {
    "pre": (f"\n\n```\n{PRE}", f"{END_PRE}\n```\n\n"),
    "blockquote": (f"\n\n{QUOTE}", f"{CLOSE}\n\n"),
    "td": (" ", " |"),
    "th": (" ", " |"),
    "br": ("", "\n"),
}
"""Element -> what comes before and after its text."""
MOST_INDENTS = 8
"""Levels that are indented; a hostile page nests hundreds."""
LONGEST_TERM = 80
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass
class Marker:
    """The state of a pass over a page."""

    rows: dict[int, Tag]
    """`id` of a table -> its first row."""
    numbers: dict[int, int] = field(default_factory=dict)
    """`id` of a numbered list -> number of its next item."""
    preformatted: int = 0
    cells: int = 0

    def find_marks(self, element: Tag) -> tuple[str, str]:
        """Return what comes before and after the text of an element."""
        name = element.name
        if self.cells and name not in ("td", "th"):
            return (" ", " ") if name in (*BLOCKS, "li", "br") else ("", "")
        if name in HEADINGS:
            return f"\n\n{'#' * int(name[1])} ", "\n\n"
        if name in ("tr", "li"):
            return self.row_marks(element) if name == "tr" else (f"\n{self.bullet(element)} {ITEM}", CLOSE)
        if name == "dt" and is_term(element):
            return "\n\n- **", "**:"
        if name == "dd" and is_term(element.find_previous_sibling(["dt", "dd"])):
            return f" {ITEM}", CLOSE
        return MARKS.get(name) or (("\n\n", "\n\n") if name in BLOCKS else ("", ""))

    def bullet(self, item: Tag) -> str:
        around = item.parent
        if around is None or around.name != "ol":
            return "-"
        start = str(around.get("start") or 1)
        number = self.numbers.get(id(around), int(start) if start.isdecimal() else 1)
        self.numbers[id(around)] = number + 1
        return f"{number}."

    def row_marks(self, row: Tag) -> tuple[str, str]:
        """Begin a row; the first one is followed by the line that makes it a head, or follows an empty head."""
        table = row.find_parent("table")
        if table is None or self.rows.get(id(table)) is not row:
            return "\n|", ""
        cells = len(row.find_all(["td", "th"]))
        line = f"\n|{' --- |' * cells}"
        return ("\n|", line) if row.find("th") is not None else (f"\n|{'  |' * cells}{line}\n|", "")


def is_term(element: PageElement | None) -> bool:
    """Whether a `<dt>` names what its `<dd>` explains."""
    return (
        isinstance(element, Tag)
        and element.name == "dt"
        and isinstance(following := element.find_next_sibling(["dt", "dd"]), Tag)
        and following.name == "dd"
        and 0 < len(words := element.get_text()) <= LONGEST_TERM
        and "\n" not in words.strip()
    )


def is_label(element: Tag) -> bool:
    """Whether bold words begin a list item."""
    around = element.parent
    if around is not None and around.name == "p" and first_child(around) is element:
        element, around = around, around.parent
    return around is not None and around.name == "li" and first_child(around) is element


def first_child(element: Tag) -> PageElement | None:
    return next((child for child in element.children if not isinstance(child, str) or child.strip()), None)


def inline_mark(element: Tag, *, preformatted: bool) -> str | None:
    """Return the marked text of an element that is only text: code, or the label of a list item."""
    if preformatted or element.name not in (*CODE, "strong", "b"):
        return None
    text = element.string
    words = " ".join(UNSAFE.sub("", text).split()) if text else ""
    if not words:
        return None
    if element.name in CODE:
        around = element.parent
        return None if "`" in words or (around is not None and around.name in CODE) else f"`{words}`"
    if "*" in words or not is_label(element):
        return None
    return f"**{words}**{' ' if text and text[-1:].isspace() else ''}"


def render_page(soup: BeautifulSoup) -> str:
    """Return the text of a page with Markdown's marks around the elements, so that it still shows the outline."""
    tables = ((table, table.find("tr")) for table in soup.find_all("table"))
    marker = Marker({id(table): row for table, row in tables if isinstance(row, Tag)})
    return "\n".join(join_lines("".join(render_pieces(soup, marker)))).strip("\n") + "\n"


def render_pieces(soup: BeautifulSoup, marker: Marker) -> Iterator[str]:
    """Yield the texts of a page with the marks before and after them."""
    closing: dict[int, str] = {}
    waiting: list[PageElement | str | int] = [soup]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            setattr(marker, closing[node], getattr(marker, closing[node]) - 1)
        elif isinstance(node, Tag):
            if (text := inline_mark(node, preformatted=bool(marker.preformatted))) is not None:
                yield text.replace("|", "\\|") if marker.cells else text
                continue
            before, after = marker.find_marks(node)
            yield before
            waiting.append(after)
            kind = "preformatted" if node.name == "pre" else "cells" if is_data_cell(node) else ""
            if kind:
                setattr(marker, kind, getattr(marker, kind) + 1)
                closing[id(node)] = kind
                waiting.append(id(node))
            sup = node.get_text().strip() if node.name == "sup" else ""
            waiting.extend([sup.translate(SUPERSCRIPTS)] if sup.isdecimal() else reversed(node.contents))
        elif not isinstance(node, NavigableString):
            yield str(node)
        elif marker.preformatted and type(node) is NavigableString:
            yield UNSAFE.sub("", node)
        elif not marker.preformatted and not isinstance(node, PreformattedString):
            words = re.sub(r"\s+", " ", UNSAFE.sub("", node))
            yield words.replace("|", "\\|") if marker.cells else words


def is_data_cell(element: Tag) -> bool:
    return element.name in ("td", "th") and element.find(NOT_IN_A_CELL) is None


def join_lines(text: str) -> Iterator[str]:
    """Yield the lines with the indents of their items and quotations, and with one empty line at most in a row."""
    around: list[str] = []
    prefix: str | None = None
    words: list[str] = []
    preformatted = verbatim = blank = False
    for part in [*CONTROLS.split(text), "\n"]:
        if part in INDENT:
            around.append(INDENT[part])
        elif part == CLOSE:
            del around[-1:]
            if BULLET.fullmatch("".join(words)):
                prefix, words = None, []  # an item without text
        elif part in (PRE, END_PRE):
            preformatted = part == PRE
        elif part != "\n":
            if part.strip() and prefix is None:
                prefix = "".join(around[:MOST_INDENTS])
            verbatim = verbatim or (preformatted and bool(part))
            words.append(part)
        elif not (line := "".join(words).rstrip()) or not BULLET.fullmatch(line):  # a block may begin an item
            if line or preformatted or not blank:
                yield f"{prefix or ''}{line if verbatim else line.strip()}" if line.strip() else ""
            blank, prefix, verbatim, words = not line.strip(), None, False, []
