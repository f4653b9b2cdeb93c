"""The documents of a night: found by the streams' patterns, read with care, told apart by what they contain.

A document that cannot be read (too large, no text, no valid YAML or JSON) is data like any other: it goes to quarantine
with its reason, and is looked at again when its content has changed. A link that leads out of the folder of documents
is not followed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from trainyard.errors import InvalidInput, Refused
from trainyard.spec.load.text import parse_text
from trainyard.spec.night import StreamSpec
from trainyard.stores.documents import DocumentKey
from trainyard.stores.files import Files

PARSERS = {".md": "markdown", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
MOST_FOLDERS_DEEP = 16


@dataclass(frozen=True)
class Document:
    """One file of one stream. `name` is its path below the folder of documents, with slashes."""

    stream: str
    name: str
    path: Path
    parser: str


@dataclass(frozen=True)
class Content:
    """A document as it was read: its text, or why there is none."""

    document: Document
    key: DocumentKey
    text: str = ""
    unreadable: str = ""


def find_documents(streams: tuple[StreamSpec, ...], root: Path, files: Files) -> list[Document]:
    """The documents of every stream in its order, by name; one that several streams match belongs to the first."""
    names = list(walk(root, files)) if files.is_folder(root) else []
    taken: set[str] = set()
    found: list[Document] = []
    for stream in streams:
        for name in names:
            if name not in taken and any(matches(name, glob) for glob in stream.globs):
                taken.add(name)
                parser = PARSERS.get(Path(name).suffix.lower(), "text") if stream.parser == "auto" else stream.parser
                found.append(Document(stream.name, name, root / name, parser))
    return found


def walk(root: Path, files: Files, below: str = "", depth: int = 0) -> Iterator[str]:
    """Names of the files below a folder, sorted; hidden ones are left out."""
    for name in files.listdir(root / below):
        if name.startswith("."):
            continue
        place = f"{below}/{name}" if below else name
        if files.is_folder(root / place):
            if depth < MOST_FOLDERS_DEEP and inside(root / place, root):
                yield from walk(root, files, place, depth + 1)
        else:
            yield place


def inside(path: Path, root: Path) -> bool:
    return not path.is_symlink() or path.resolve().is_relative_to(root.resolve())


def matches(name: str, glob: str) -> bool:
    """Whether a path matches a pattern, part by part; `**` stands for any number of folders."""
    return match_parts(name.split("/"), glob.split("/"))


def match_parts(parts: list[str], globs: list[str]) -> bool:
    if not globs:
        return not parts
    if globs[0] == "**":
        return any(match_parts(parts[index:], globs[1:]) for index in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], globs[0]) and match_parts(parts[1:], globs[1:])


def read_document(document: Document, version: str, root: Path, files: Files, most_bytes: int) -> Content:
    """The text of a document and the key of its content. Raises only `OSError` of a disk that fails."""
    if not inside(document.path, root):
        return refused(document, version, "it is a link that leads out of the folder of documents")
    try:
        size = files.size(document.path)
        if size > most_bytes:
            return refused(document, version, f"it has {size:,} bytes; at most {most_bytes:,} are read", str(size))
        data = files.read(document.path)
    except (PermissionError, IsADirectoryError) as error:
        return refused(document, version, f"it cannot be read: {error.strerror}")
    key = DocumentKey(hashlib.sha256(data).hexdigest(), document.stream, version)
    try:
        return Content(document, key, text_of(data, document.parser))
    except InvalidInput as error:
        return Content(document, key, unreadable=error.why or error.what)


def refused(document: Document, version: str, why: str, more: str = "") -> Content:
    """A document whose bytes were not read: its name stands for its content."""
    digest = hashlib.sha256(f"unread\0{document.name}\0{why}\0{more}".encode()).hexdigest()
    return Content(document, DocumentKey(digest, document.stream, version), unreadable=why)


def text_of(data: bytes, parser: str) -> str:
    """Raises `InvalidInput` (`E-DOCUMENT`) with the reason."""
    if b"\x00" in data:
        raise unreadable("it holds NUL bytes, so it is no text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(f"it is not UTF-8: byte {data[error.start]:#04x} at {error.start:,}") from error
    if not text.strip():
        raise unreadable("it is empty")
    if parser in ("yaml", "json"):
        try:
            parse_text(data, max_bytes=len(data))
        except Refused as error:
            raise unreadable(error.reasons[0].because) from error
    return text


def unreadable(why: str) -> InvalidInput:
    return InvalidInput("The document cannot be read.", why=why, do="Correct the file.", code="E-DOCUMENT")
