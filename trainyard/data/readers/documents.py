"""Documents: one file, one row. Libraries parse HTML, PDF and office files; headings become Markdown's `#` lines.

Adding a type: a function `read(data, name) -> (title, text)` that raises `BadRow`, and a row in `TYPES`. It runs in a
child with limits (`data/limited`). Its time must still grow with the file alone, so titles are found line by line.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from trainyard.data.formats.messages import require_text
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.streams import Limits, open_text
from trainyard.data.rows import DocumentRow
from trainyard.errors import InvalidInput

Read = Callable[[bytes, str], tuple[str, str]]
TITLE_CHARS = 200
FENCES = ("```", "~~~")
UNDERLINE = re.compile(r"=+|-{3,}")
FRONT_TITLE = re.compile(r"^title:(.*)$", re.MULTILINE)
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
RST_LINE = r"[=\-`:.'\"~^_*+#]"
RST_HEADING = re.compile(
    rf"^(?P<title>(?!{RST_LINE}{{3}})\S.*)\n(?P<line>{RST_LINE})(?P=line){{2,}}[ \t]*$", re.MULTILINE
)
LOST_SHARE = {"pdf": 0.001, "code": 1.0}
"""Kind -> share of characters that may be U+FFFD, else none: a PDF has one where a font does not name a sign, and a
program may have one in a literal."""


def read_plain_text(data: bytes, name: str) -> str:
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
    text = read_plain_text(data, name)
    front = FRONT_MATTER.match(text)
    match = FRONT_TITLE.search(front[1]) if front else None
    title = match[1].strip() if match else ""
    quoted = len(title) > 1 and title[0] in "'\""
    title = title[1:].removesuffix(title[0]).strip() if quoted else title.rstrip("'\"")
    return title or first_heading(text[front.end() :] if front else text), text


def first_heading(text: str) -> str:
    """Return the first heading of Markdown, `# …` or underlined, outside of fenced code."""
    lines = text.split("\n")
    fence, last_fence, above = "", None, ""
    for number, line in enumerate(lines):
        if fence:
            fence = "" if line.rstrip() == fence else fence
            above = ""
        elif line.startswith(FENCES):
            if last_fence is None:
                last_fence = {other.rstrip(): index for index, other in enumerate(lines) if other.startswith(FENCES)}
            # A fence that nobody closes is a line like any other.
            fence, above = (line[:3], "") if last_fence.get(line[:3], -1) > number else ("", line)
        elif heading := parse_heading(line) or (above if UNDERLINE.fullmatch(line.rstrip()) else ""):
            return heading
        else:
            above = line if line[:1].strip() else ""
    return ""


def parse_heading(line: str) -> str:
    """Return the words of a line `## words ##`, or an empty string."""
    words = line.lstrip("#")
    if not 1 <= len(line) - len(words) <= 6 or not words[:1].isspace():
        return ""
    words = words.strip()
    return words.rstrip("#").rstrip() or words[:1]


def read_plain(data: bytes, name: str) -> tuple[str, str]:
    return "", read_plain_text(data, name)


def read_rst(data: bytes, name: str) -> tuple[str, str]:
    text = read_plain_text(data, name)
    heading = RST_HEADING.search(text)
    return heading["title"] if heading else "", text


CODE_SUFFIXES = tuple(
    f".{name}"
    for name in (
        *("py", "pyi", "js", "mjs", "cjs", "ts", "tsx", "jsx", "vue", "svelte", "php", "rb", "lua", "pl", "pm"),
        *("java", "kt", "kts", "scala", "groovy", "clj", "cs", "fs", "vb", "swift", "m", "mm", "dart"),
        *("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "asm", "go", "rs", "zig", "nim", "f90", "proto"),
        *("r", "jl", "hs", "ml", "mli", "ex", "exs", "erl", "lisp", "sh", "bash", "zsh", "ps1", "sql", "tf"),
    )
)


# Readers below are imported when a set has such a file: each needs a parser of its own.


def load_html() -> Read:
    from trainyard.data.readers.markup.html import read_html  # its parser

    return read_html


def load_pdf() -> Read:
    from trainyard.data.readers.markup.pdf import read_pdf  # its parser

    return read_pdf


def load_docx() -> Read:
    from trainyard.data.readers.markup.word import read_docx  # its parser

    return read_docx


def load_pptx() -> Read:
    from trainyard.data.readers.markup.office import read_pptx  # its parser

    return read_pptx


def load_xlsx() -> Read:
    from trainyard.data.readers.markup.office import read_xlsx  # its parser

    return read_xlsx


def load_epub() -> Read:
    from trainyard.data.readers.markup.books import read_epub  # its parser

    return read_epub


def load_mail() -> Read:
    from trainyard.data.readers.markup.mails import read_eml  # its parser

    return read_eml


def load_notebook() -> Read:
    from trainyard.data.readers.markup.notebooks import read_notebook  # its parser

    return read_notebook


TYPES: dict[str, tuple[str, Callable[[], Read]]] = {
    ".md": ("markdown", lambda: read_markdown),
    ".markdown": ("markdown", lambda: read_markdown),
    ".txt": ("text", lambda: read_plain),
    ".text": ("text", lambda: read_plain),
    ".rst": ("rst", lambda: read_rst),
    ".html": ("html", load_html),
    ".htm": ("html", load_html),
    ".xhtml": ("html", load_html),
    ".pdf": ("pdf", load_pdf),
    ".docx": ("docx", load_docx),
    ".pptx": ("pptx", load_pptx),
    ".xlsx": ("xlsx", load_xlsx),
    ".epub": ("epub", load_epub),
    ".eml": ("mail", load_mail),
    ".ipynb": ("notebook", load_notebook),
    **dict.fromkeys(CODE_SUFFIXES, ("code", lambda: read_plain)),
}
"""File name extension -> (kind of the DocumentRow, function that returns the reader)."""


def find_type(name: str) -> tuple[str, Callable[[], Read]]:
    """Return the row of a file's type; a file of unknown type is plain text."""
    return TYPES.get(PurePosixPath(name).suffix.lower(), ("text", lambda: read_plain))


def load_readers(names: Iterable[str]) -> None:
    """Load the readers of these files, once for all the children that are forked afterwards."""
    for load_reader in {load_reader for _, load_reader in map(find_type, names)}:
        load_reader()


def read_document(data: bytes, name: str) -> DocumentRow:
    """Return the document of a file's bytes. Raises `BadRow`. Without limits: sets are read through `data/limited`."""
    kind, load_reader = find_type(name)
    if kind != "pdf" and not data.strip():
        raise BadRow("empty", "the file is empty")
    title, text = load_reader()(data, name)
    lost = text.count("\ufffd")  # decoded wrongly, here or before it came here
    if lost > LOST_SHARE.get(kind, 0.0) * len(text):
        detail = f"{lost:,} of {len(text):,} characters are lost (U+FFFD); save the file again as UTF-8"
        raise BadRow("replacement_characters", detail)
    title = " ".join(require_text(title, "title").split()) if title.strip() else PurePosixPath(name).name
    return DocumentRow(
        hashlib.sha256(data).hexdigest()[:16], "", kind, title[:TITLE_CHARS], require_text(text, "the text")
    )
