"""HTML pages: their characters, their title and their text with Markdown's marks.

The charset is, in this order: that of a byte order mark, UTF-8 if the bytes are valid UTF-8, what the page declares if
its bytes fit, and what charset-normalizer finds in the text. A wrong declaration is never forced on the bytes.

The text of an HTML page with Markdown's marks: headings, nested and numbered lists, quotations, tables and code.

One pass over the elements and one over the lines: to insert marks into the tree would search the siblings of each
element, and a page of a megabyte is read in a second.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bs4 import BeautifulSoup
from bs4.element import NavigableString, PageElement, PreformattedString, Tag
from charset_normalizer import from_bytes

from trainyard.data.language import match_stop_words
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.streams import SNIFFED_BYTES, detect_encoding
from trainyard.errors import InvalidInput

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


UNREAD = ["script", "style", "noscript", "template", "svg", "nav", "head", "iframe", "form", "button"]
LEFT_OUT = "left-out"
"""The name of an element that is not read; a page's own element of this name has no marks either."""
MENU_ROLES = {"navigation", "menu", "menubar", "directory", "search"}
MENU_NAME = re.compile(
    r"(?:^|[-_])(?:menu|nav|navbar|navigation|sidebar|sphinxsidebar|toc|breadcrumbs?)(?:$|[-_])", re.I
)
MOST_MENUS = 50
"""Elements of a page that are looked at because of their name; a hostile page nests thousands."""
MOST_TITLES = 50
"""Top headings of which one is the title; each contains those that a hostile page nests in it."""
SELF_LINK = re.compile(r"(?<!\s)\s*[¶§#🔗]\s*$")
WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
"""Declared codec -> the superset that browsers read instead (WHATWG Encoding, table of labels)."""
STATEFUL = ("iso2022_jp", "hz")
"""Codecs whose text is plain ASCII bytes, and so would pass for UTF-8."""
JAPANESE_ESCAPE = b"\x1b$"
"""How ISO-2022-JP changes to two bytes a character; no UTF-8 page contains it."""
SAME_CHAOS, SAME_COHERENCE = 0.06, 0.05
"""Two charsets are equally good for the detector if they differ by less, on its scales from 0 to 1."""
CENTRAL = ("cs", "hu", "pl", "ro")
"""Languages whose pages are not written in cp1252."""
MAX_DEPTH = 512
"""Elements inside of each other; browsers put deeper ones next to each other, and time grows with the depth."""
META = re.compile(rb"<meta[^<>]{1,500}?charset\s{0,20}=\s{0,20}[\"']?([^<>\s\"'/;]{1,40})", re.IGNORECASE)
XML_DECLARATION = re.compile(rb"\s{0,100}<\?xml[^<>]{1,200}?encoding=[\"']([^<>\"']{1,40})[\"']")
DECLARED_BYTES = 1 << 16
"""Where a page may declare its charset; the standard looks at 1,024 bytes, some pages have scripts before it."""
TAG = re.compile(rb"<[^<>]{0,4000}>")
DETECTED_BYTES = 1 << 18
"""The detector looks at so many bytes of text: its time grows with the length and its answer does not change."""


class Page(BeautifulSoup):
    """A page of bounded depth. Raises `BadRow` (`too_deep`) while it is parsed."""

    def pushTag(self, tag: Tag) -> None:
        super().pushTag(tag)
        if len(self.tagStack) > MAX_DEPTH:
            raise BadRow("too_deep", f"its elements are nested more than {MAX_DEPTH} deep")


def read_html(data: bytes, name: str) -> tuple[str, str]:
    """Text with headings, list items, table rows and code blocks in Markdown's marks, without scripts and menus."""
    soup = Page(html_text(data, name), "lxml")
    named = read_line(soup.title)
    for find in (lambda: soup(UNREAD), lambda: find_menus(soup)):
        for element in find():
            # To remove it would search its siblings, which is quadratic in them.
            element.clear()
            element.name, element.attrs = LEFT_OUT, {}
    title = page_title(soup, named)
    return title, render_page(soup)


def html_text(data: bytes, name: str) -> str:
    """Return the characters of a page. Raises `BadRow` (`binary`, `charset`)."""
    try:
        unicode = detect_encoding(data[:SNIFFED_BYTES], name)
    except InvalidInput as error:
        raise BadRow("binary", error.what) from error
    head = data[:DECLARED_BYTES]
    match = XML_DECLARATION.match(head) or META.search(head)
    charset = match[1].decode("ascii", "replace").lower() if match else None
    declared = "iso2022_jp" if JAPANESE_ESCAPE in data else find_codec(charset) if charset else None
    first = [declared, unicode] if declared in STATEFUL and unicode == "utf-8" else [unicode, declared]
    for codec in filter(None, first):
        try:
            return data.decode(codec).removeprefix("\ufeff")
        except (UnicodeDecodeError, LookupError):
            continue
    try:
        return data.decode(detect_codec(TAG.sub(b" ", data)[:DETECTED_BYTES]))
    except UnicodeDecodeError as error:
        detail = f"it declares {charset!r}, which does not fit its bytes" if charset else "it declares none"
        raise BadRow("charset", f"the charset of the page is unknown: {detail}; save it as UTF-8") from error


def detect_codec(text: bytes) -> str:
    """Return the codec of bytes that are not UTF-8, or `utf-8` if none fits.

    Between Western and Central European letters the detector often has no preference; the words decide then.
    """
    matches = from_bytes(text)
    best = matches.best()
    if best is None:
        return "utf-8"
    for match in matches:
        as_good = match.chaos - best.chaos < SAME_CHAOS and best.coherence - match.coherence < SAME_COHERENCE
        if match.encoding == "cp1252" and as_good and match_stop_words(str(best)) not in CENTRAL:
            return "cp1252"
    return str(best.encoding)


def find_codec(label: str) -> str | None:
    """Python's codec for a declared charset; None for an unknown label, and for Unicode, which is tried anyway."""
    try:
        codec = codecs.lookup(label.strip())
    except (LookupError, ValueError):
        return None
    return None if codec.name.startswith("utf-") else WIDER.get(codec.name, codec.name)


def find_menus(soup: BeautifulSoup) -> list[Tag]:
    """Return the elements that lead to other pages: by their role, or by their name if most of their text is links."""
    roled = [element for element in soup.find_all(True) if element.get("role") in MENU_ROLES]
    return roled + [element for element in soup.find_all(is_named_menu, limit=MOST_MENUS) if is_mostly_links(element)]


def is_named_menu(element: Tag) -> bool:
    names = [*(element.get("class") or []), str(element.get("id") or "")]
    is_content = element.name in ("html", "body", "main", "article", "a")
    return not is_content and any(MENU_NAME.search(str(name)) for name in names)


def is_mostly_links(element: Tag) -> bool:
    """Whether links are half of an element's text, headings apart."""
    linked = rest = 0
    for string in element.find_all(string=True):
        length = len("".join(string.split()))
        around = {parent.name for parent in string.parents} if length else set()
        if "a" in around:
            linked += length
        elif around.isdisjoint(HEADINGS):
            rest += length
    return linked >= rest


def page_title(soup: BeautifulSoup, named: str) -> str:
    """Return the page's own title: the top heading that `<title>` repeats, else that of the content, else `<title>`."""
    headings = [heading for heading in soup.find_all("h1", limit=MOST_TITLES) if read_line(heading)]
    inside = [heading for heading in headings if heading.find_parent(["main", "article"])]
    body = [heading for heading in headings if not heading.find_parent(["header", "footer", "aside"])]
    repeated = [heading for heading in body if read_line(heading).lower() in named.lower()]
    best = next(iter([*repeated, *inside, *body]), None)
    return read_line(best) or named or read_line(next(iter([*headings, *soup.find_all("h2", limit=1)]), None))


def read_line(element: Tag | None) -> str:
    """The text of an element on one line, without the link to itself that documentation tools put behind a heading."""
    return SELF_LINK.sub("", " ".join(element.get_text(" ").split())) if element is not None else ""
