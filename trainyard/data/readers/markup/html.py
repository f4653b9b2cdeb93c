"""HTML pages: their characters, their title and their text with Markdown's marks.

The charset is, in this order: that of a byte order mark, UTF-8 if the bytes are valid UTF-8, what the page declares if
its bytes fit, and what charset-normalizer finds in the text. A wrong declaration is never forced on the bytes.
"""

from __future__ import annotations

import codecs
import re

from bs4 import BeautifulSoup
from bs4.element import Tag
from charset_normalizer import from_bytes

from trainyard.data.language import match_stop_words
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.marks import HEADINGS, render_page
from trainyard.data.readers.streams import SNIFFED_BYTES, detect_encoding
from trainyard.errors import InvalidInput

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
