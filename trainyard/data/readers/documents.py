"""Documents: one file, one row. Libraries parse HTML, PDF and DOCX; headings become Markdown's `#` lines.

Adding a type: a function `read(data, name) -> (title, text)` that raises `BadRow`, and a row in `TYPES`.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath

import docx
import pypdf
from bs4 import BeautifulSoup
from bs4.element import NavigableString, PreformattedString
from docx.table import Table
from docx.text.paragraph import Paragraph
from pypdf.errors import PyPdfError

from trainyard.data.formats.messages import filled
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.streams import Limits, open_text
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput

Read = Callable[[bytes, str], tuple[str, str]]
TITLE_CHARS = 200
MAX_PAGES = 5000
MAX_ARCHIVE_EXPANSION = 100
DAMAGE = (
    *(PyPdfError, zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, AssertionError, RuntimeError, OSError, EOFError),
)
"""What the libraries raise on a damaged PDF or DOCX; each means the same to the user."""
MARKDOWN_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$|^(\S.*)\n(?:=+|-{3,})\s*$", re.MULTILINE)
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
FRONT_TITLE = re.compile(r"^title:\s*['\"]?(.+?)['\"]?\s*$", re.MULTILINE)
RST_LINE = r"[=\-`:.'\"~^_*+#]"
RST_HEADING = re.compile(
    rf"^(?P<title>(?!{RST_LINE}{{3}})\S.*)\n(?P<line>{RST_LINE})(?P=line){{2,}}[ \t]*$", re.MULTILINE
)
logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each repaired oddity; what counts is the text
BLOCKS = ["p", "div", "section", "article", "ul", "ol", "dl", "dt", "dd", "table", "blockquote", "figure", "header"]
UNREAD = ["script", "style", "noscript", "template", "svg", "nav", "head", "iframe", "form", "button"]


def plain(data: bytes, name: str) -> str:
    """Text of any encoding that `open_text` knows, with LF line ends."""
    try:
        stream = open_text(io.BytesIO(data), name, Limits(line=max(1, len(data))))
        text = b"".join(stream.blocks).decode()
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"byte {error.start} is not UTF-8") from error
    except InvalidInput as error:
        raise BadRow("binary", error.what) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_markdown(data: bytes, name: str) -> tuple[str, str]:
    text = plain(data, name)
    front = FRONT_MATTER.match(text)
    titled = FRONT_TITLE.search(front[1]) if front else None
    heading = MARKDOWN_HEADING.search(FENCED.sub("", text[front.end() :] if front else text))
    return (titled[1] if titled else (heading[1] or heading[2]) if heading else ""), text


def read_plain(data: bytes, name: str) -> tuple[str, str]:
    return "", plain(data, name)


def read_rst(data: bytes, name: str) -> tuple[str, str]:
    text = plain(data, name)
    heading = RST_HEADING.search(text)
    return heading["title"] if heading else "", text


def read_html(data: bytes, name: str) -> tuple[str, str]:
    """Text with headings, list items, table rows and code blocks in Markdown's marks, without scripts and menus."""
    soup = BeautifulSoup(data, "lxml")
    title = soup.title.get_text(" ", strip=True) if soup.title else ""
    first = soup.find(["h1", "h2"])
    title = (first.get_text(" ", strip=True) if first else "") or title
    for element in soup(UNREAD):
        element.decompose()
    mark_html(soup)
    text = re.sub(r"[ \t]*\n[ \t]*(?:\n[ \t]*)+", "\n\n", soup.get_text())
    return title, "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def mark_html(soup: BeautifulSoup) -> None:
    """Put Markdown's marks around the elements, so that their text alone still shows the outline."""
    for string in soup.find_all(string=True):
        if isinstance(string, PreformattedString):
            string.extract()
        elif string.find_parent("pre") is None:
            string.replace_with(NavigableString(re.sub(r"\s+", " ", string)))
    for element in soup.find_all(True):
        if re.fullmatch(r"h[1-6]", element.name):
            surround(element, f"\n\n{'#' * int(element.name[1])} ", "\n\n")
        elif element.name == "pre":
            surround(element, "\n\n```\n", "\n```\n\n")
        elif element.name == "li":
            surround(element, "\n- ", "")
        elif element.name == "tr":
            cells = len(element.find_all(["td", "th"]))
            head = element.find("th") is not None and element.find_previous_sibling("tr") is None
            surround(element, "\n|", f"\n|{' --- |' * cells}" if head else "")
        elif element.name in ("td", "th"):
            surround(element, " ", " |")
        elif element.name == "br":
            element.insert_after("\n")
        elif element.name in BLOCKS:
            surround(element, "\n\n", "\n\n")


def surround(element: object, before: str, after: str) -> None:
    element.insert(0, before)  # type: ignore[attr-defined]
    element.append(after)  # type: ignore[attr-defined]


def read_pdf(data: bytes, name: str) -> tuple[str, str]:
    """The text of each page; a scanned document without text is a bad row."""
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadRow("encrypted", "the PDF needs a password")
        if len(reader.pages) > MAX_PAGES:
            raise BadRow("too_large", f"the PDF has {len(reader.pages)} pages, at most {MAX_PAGES} are read")
        pages = [page.extract_text() for page in reader.pages]
        title = str(reader.metadata.title or "") if reader.metadata else ""
    except DAMAGE as error:
        raise BadRow("unreadable", f"the PDF is damaged ({type(error).__name__}: {error})"[:300]) from error
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    if not text:
        raise BadRow("no_text", "the PDF holds no text; scanned pages need text recognition first")
    first = text.splitlines()[0].strip()
    return title.strip() or (first if len(first) <= 100 else ""), text + "\n"


def read_docx(data: bytes, name: str) -> tuple[str, str]:
    """Paragraphs and tables in order; heading styles become `#` lines, list styles `-` lines."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            expanded = sum(entry.file_size for entry in archive.infolist())
        if expanded > max(1 << 20, MAX_ARCHIVE_EXPANSION * len(data)):
            raise BadRow("too_large", f"the DOCX expands to {expanded:,} bytes out of {len(data):,}")
        document = docx.Document(io.BytesIO(data))
        blocks = [docx_block(block) for block in document.iter_inner_content()]
        title = document.core_properties.title
    except DAMAGE as error:
        raise BadRow("unreadable", f"the DOCX is damaged ({type(error).__name__}: {error})"[:300]) from error
    text = "\n\n".join(block for block in blocks if block) + "\n"
    heading = MARKDOWN_HEADING.search(text)
    return title or (heading[1] if heading else ""), text


def docx_block(block: Paragraph | Table) -> str:
    if isinstance(block, Table):
        rows = ["| " + " | ".join(cell.text.replace("\n", " ") for cell in row.cells) + " |" for row in block.rows]
        return "\n".join([*rows[:1], "|" + " --- |" * len(block.columns), *rows[1:]])
    style = (block.style.name if block.style is not None else "") or ""
    if style == "Title" or style.startswith("Heading"):
        level = int(style.split()[-1]) if style.split()[-1].isdigit() else 1
        return f"{'#' * min(level, 6)} {block.text}" if block.text else ""
    return f"- {block.text}" if style.startswith("List") else block.text


CODE_SUFFIXES = tuple(
    f".{name}"
    for name in (
        *("py", "pyi", "js", "mjs", "cjs", "ts", "tsx", "jsx", "vue", "svelte", "php", "rb", "lua", "pl", "pm"),
        *("java", "kt", "kts", "scala", "groovy", "clj", "cs", "fs", "vb", "swift", "m", "mm", "dart"),
        *("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "asm", "go", "rs", "zig", "nim", "f90", "proto"),
        *("r", "jl", "hs", "ml", "mli", "ex", "exs", "erl", "lisp", "sh", "bash", "zsh", "ps1", "sql", "tf"),
    )
)
TYPES: dict[str, tuple[str, Read]] = {
    ".md": ("markdown", read_markdown),
    ".markdown": ("markdown", read_markdown),
    ".txt": ("text", read_plain),
    ".text": ("text", read_plain),
    ".rst": ("rst", read_rst),
    ".html": ("html", read_html),
    ".htm": ("html", read_html),
    ".xhtml": ("html", read_html),
    ".pdf": ("pdf", read_pdf),
    ".docx": ("docx", read_docx),
    **dict.fromkeys(CODE_SUFFIXES, ("code", read_plain)),
}
"""File name extension -> (kind of the DocumentRow, reader)."""


def read_document(data: bytes, name: str) -> DocumentRow:
    """The document of a file's bytes. A file of unknown type is read as plain text. Raises `BadRow`."""
    path = PurePosixPath(name)
    kind, read = TYPES.get(path.suffix.lower(), ("text", read_plain))
    if kind != "pdf" and not data.strip():
        raise BadRow("empty", "the file is empty")
    title, text = read(data, name)
    title = " ".join(filled(title, "title").split()) if title.strip() else path.name
    return DocumentRow(hashlib.sha256(data).hexdigest()[:16], "", kind, title[:TITLE_CHARS], filled(text, "the text"))
