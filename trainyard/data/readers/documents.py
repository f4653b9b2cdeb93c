"""Documents: one file, one row. Libraries parse HTML, PDF and DOCX; headings become Markdown's `#` lines.

Adding a type: a function `read(data, name) -> (title, text)` that raises `BadRow`, and a row in `TYPES`.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pypdf
from pypdf.errors import PyPdfError

from trainyard.data.formats.messages import filled
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.markup.html import read_html
from trainyard.data.readers.markup.word import DAMAGE, read_docx
from trainyard.data.readers.streams import Limits, open_text
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput

Read = Callable[[bytes, str], tuple[str, str]]
TITLE_CHARS = 200
MAX_PAGES = 5000
MARKDOWN_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$|^(\S.*)\n(?:=+|-{3,})\s*$", re.MULTILINE)
FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
FRONT_TITLE = re.compile(r"^title:\s*['\"]?(.+?)['\"]?\s*$", re.MULTILINE)
RST_LINE = r"[=\-`:.'\"~^_*+#]"
RST_HEADING = re.compile(
    rf"^(?P<title>(?!{RST_LINE}{{3}})\S.*)\n(?P<line>{RST_LINE})(?P=line){{2,}}[ \t]*$", re.MULTILINE
)
logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports each repaired oddity; what counts is the text
LOST_SHARE = {"pdf": 0.001, "code": 1.0}
"""Kind -> share of characters that may be U+FFFD, else none: a PDF has one where a font does not name a sign, and a
program may have one in a literal."""


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
    except (PyPdfError, *DAMAGE) as error:
        raise BadRow("unreadable", f"the PDF is damaged ({type(error).__name__}: {error})"[:300]) from error
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    if not text:
        raise BadRow("no_text", "the PDF holds no text; scanned pages need text recognition first")
    first = text.splitlines()[0].strip()
    return title.strip() or (first if len(first) <= 100 else ""), text + "\n"


def read_word(data: bytes, name: str) -> tuple[str, str]:
    title, text = read_docx(data, name)
    heading = MARKDOWN_HEADING.search(text)
    return title or (heading[1] if heading else ""), text


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
    ".docx": ("docx", read_word),
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
    check_characters(text, kind)
    title = " ".join(filled(title, "title").split()) if title.strip() else path.name
    return DocumentRow(hashlib.sha256(data).hexdigest()[:16], "", kind, title[:TITLE_CHARS], filled(text, "the text"))


def check_characters(text: str, kind: str) -> None:
    """Raise `BadRow` (`replacement_characters`) for a text that was decoded wrongly, here or before it came here."""
    lost = text.count("\ufffd")
    if lost > LOST_SHARE.get(kind, 0.0) * len(text):
        detail = f"{lost:,} of {len(text):,} characters are lost (U+FFFD); save the file again as UTF-8"
        raise BadRow("replacement_characters", detail)
