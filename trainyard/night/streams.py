"""The documents of a night: found by the streams' patterns, read within limits, identified by their content.

A document that cannot be read (too large, no text, no valid YAML or JSON) is data like any other: it goes to quarantine
with its reason, and is read again when its content has changed. A link that leads out of the folder of documents is
not followed. Bytes are read and decoded here; limited children parse them (`data/limited`).

A document that is longer than the model's context is read in windows (parts), and each part is a document of its own:
with a name, a key, an entry in the ledger and its own facts in the graph. The first has the file's name, the others
follow below it (`notes.md/#2`), where no file can be. Parts overlap a little, so that a fact on a cut is whole in one
of them; what two parts name is one entity of the graph, with both as its sources. An edit is read again part by part;
a part that the file no longer has is replaced by nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from trainyard.data.limited.requests import Parse, ParsedItem, ParseItem
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS
from trainyard.spec.night import StreamSpec
from trainyard.stores.documents import DocumentKey
from trainyard.stores.files import Files

PARSERS = {".md": "markdown", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
MOST_FOLDERS_DEEP = 16
OVERLAP_SHARE = 16
"""A part repeats at most one sixteenth of itself from the end of the one before."""
PART_OF = "/#"
"""Separates a file's name from the number of its part: no file is below a file."""
BATCH_DOCUMENTS, BATCH_CHARS = 1_000, 16_000_000
"""Documents, or characters, after which what was read is parsed: a request to the limited children costs 10 ms."""
GONE = hashlib.sha256(b"\0part that is gone").hexdigest()
"""The content of a part that its file no longer has. No text has it: NUL is never read."""


@dataclass(frozen=True)
class StreamDocument:
    """A file of one stream, or a part of it. `name` is its path below the folder of documents, with slashes."""

    stream: str
    name: str
    path: Path
    parser: str
    part: int = 1

    @property
    def file(self) -> StreamDocument:
        """Return the document without its part; for the first part, itself."""
        return self if self.part == 1 else replace(self, name=split_part_name(self.name)[0], part=1)


@dataclass(frozen=True)
class Content:
    """A document as it was read: its text, or why there is none."""

    document: StreamDocument
    key: DocumentKey
    text: str = ""
    unreadable: str = ""


def choose_overlap(window_chars: int) -> int:
    """Return how many characters of a part are the end of the one before, at most."""
    return window_chars // OVERLAP_SHARE


def split_part_name(name: str) -> tuple[str, int]:
    """(name of the file, number of the part) of a document's name."""
    file, mark, number = name.rpartition(PART_OF)
    return (file, int(number)) if mark and number.isdecimal() else (name, 1)


def part_name(file: str, part: int) -> str:
    return f"{file}{PART_OF}{part}" if part > 1 else file


def find_documents(streams: tuple[StreamSpec, ...], root: Path, files: Files) -> list[StreamDocument]:
    """The documents of every stream in its order, by name; one that several streams match belongs to the first."""
    names = list(walk(root, files)) if files.is_folder(root) else []
    seen: set[str] = set()
    documents: list[StreamDocument] = []
    for stream in streams:
        for name in names:
            if name not in seen and any(matches(name, glob) for glob in stream.globs):
                seen.add(name)
                parser = PARSERS.get(Path(name).suffix.lower(), "text") if stream.parser == "auto" else stream.parser
                documents.append(StreamDocument(stream.name, name, root / name, parser))
    return documents


def walk(root: Path, files: Files, below: str = "", depth: int = 0) -> Iterator[str]:
    """Names of the files below a folder, sorted; hidden ones are left out."""
    for name in files.listdir(root / below):
        if name.startswith("."):
            continue
        relative = f"{below}/{name}" if below else name
        if files.is_folder(root / relative):
            if depth < MOST_FOLDERS_DEEP and is_inside(root / relative, root):
                yield from walk(root, files, relative, depth + 1)
        else:
            yield relative


def is_inside(path: Path, root: Path) -> bool:
    return not path.is_symlink() or path.resolve().is_relative_to(root.resolve())


def matches(name: str, glob: str) -> bool:
    """Return whether a path matches a pattern, part by part; `**` matches any number of folders."""
    return match_parts(name.split("/"), glob.split("/"))


def match_parts(parts: list[str], globs: list[str]) -> bool:
    if not globs:
        return not parts
    if globs[0] == "**":
        return any(match_parts(parts[index:], globs[1:]) for index in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], globs[0]) and match_parts(parts[1:], globs[1:])


class RememberedParse:
    """`Parse` that does not parse the same bytes twice: a night reads a document when it looks for new ones and again
    when it asks the model."""

    def __init__(self, parse: Parse) -> None:
        self.parse = parse
        self.cache: dict[tuple[bytes, str, int, int], ParsedItem] = {}

    def __call__(self, items: Sequence[ParseItem]) -> list[ParsedItem]:
        keys = [
            (hashlib.sha256(item.data).digest(), item.parser, item.most_chars, item.overlap_chars) for item in items
        ]
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in self.cache}
        self.cache.update(zip(new, self.parse(list(new.values())), strict=True))
        return [self.cache[key] for key in keys]


@dataclass(frozen=True)
class DocumentReader:
    """Reads documents: the bytes here, what they contain in `parse`."""

    version: str
    root: Path
    files: Files
    most_bytes: int
    parse: Parse
    window_chars: int = MAX_DOCUMENT_CHARS
    """Longest part of a document."""

    def read(self, document: StreamDocument) -> Content:
        """Return the text of a document, or of a part, and the key of its content.

        Raises only `OSError` of a disk that fails, and `FileNotFoundError` for what is no longer there.
        """
        contents = next(self.read_files([document.file]), ())
        if document.part > len(contents):
            raise FileNotFoundError(f"{document.name} is gone: its file has {len(contents)} parts.")
        return contents[document.part - 1]

    def read_files(self, documents: Iterable[StreamDocument]) -> Iterator[tuple[Content, ...]]:
        """Yield the contents of each file: one, or one for each part of a long one. A file that is gone is left out.

        Raises only `OSError` of a disk that fails.
        """
        batch: list[Content] = []
        chars = 0
        for document in documents:
            try:
                batch.append(self.load(document))
            except FileNotFoundError:
                continue
            chars += len(batch[-1].text)
            if len(batch) >= BATCH_DOCUMENTS or chars >= BATCH_CHARS:
                yield from self.parsed(batch)
                batch, chars = [], 0
        yield from self.parsed(batch)

    def load(self, document: StreamDocument) -> Content:
        """Return a file's whole text, not parsed yet."""
        if not is_inside(document.path, self.root):
            return build_refused(document, self.version, "it is a link that leads out of the folder of documents")
        try:
            size = self.files.size(document.path)
            if size > self.most_bytes:
                why = f"it has {size:,} bytes; at most {self.most_bytes:,} are read"
                return build_refused(document, self.version, why, str(size))
            data = self.files.read(document.path)
        except (PermissionError, IsADirectoryError) as error:
            return build_refused(document, self.version, f"it cannot be read: {error.strerror}")
        text, unreadable = decode(data)
        key = DocumentKey(hashlib.sha256(data).hexdigest(), document.stream, self.version)
        return Content(document, key, text, unreadable)

    def parsed(self, loaded: list[Content]) -> Iterator[tuple[Content, ...]]:
        """Yield the parts of texts."""
        items = [
            ParseItem(
                content.text.encode(), content.document.parser, self.window_chars, choose_overlap(self.window_chars)
            )
            for content in loaded
            if not content.unreadable
        ]
        results = iter(self.parse(items))
        for content in loaded:
            yield (content,) if content.unreadable else self.split_parts(content, next(results))

    def split_parts(self, whole: Content, item: ParsedItem) -> tuple[Content, ...]:
        if item.unreadable:
            return (replace(whole, text="", unreadable=item.unreadable),)
        texts = [whole.text[start:end] for start, end in item.parts]
        if len(texts) == 1:
            return (replace(whole, text=texts[0]),)
        return tuple(content_of_part(whole.document, self.version, text, n) for n, text in enumerate(texts, 1))


def content_of_part(document: StreamDocument, version: str, text: str, number: int) -> Content:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    part = replace(document, name=part_name(document.name, number), part=number)
    return Content(part, DocumentKey(digest, document.stream, version), text)


def build_gone_part(stream: str, name: str, version: str) -> Content:
    """Return a part that its file no longer has."""
    file, number = split_part_name(name)
    return Content(StreamDocument(stream, name, Path(file), "text", number), DocumentKey(GONE, stream, version))


def build_refused(document: StreamDocument, version: str, why: str, more: str = "") -> Content:
    """Return a document whose bytes were not read: its digest is made from its name instead of its content."""
    digest = hashlib.sha256(f"unread\0{document.name}\0{why}\0{more}".encode()).hexdigest()
    return Content(document, DocumentKey(digest, document.stream, version), unreadable=why)


def decode(data: bytes) -> tuple[str, str]:
    """Return (text, why there is none) of bytes."""
    if b"\x00" in data:
        return "", "it contains NUL bytes, so it is not text"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return "", f"it is not UTF-8: byte {data[error.start]:#04x} at {error.start:,}"
    return (text, "") if text.strip() else ("", "it is empty")
