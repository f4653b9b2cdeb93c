"""From a place to a stream of chunks: which files a path stands for, and which reader each of them needs."""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from trainyard.data.formats import DOCUMENT, SHAPES, Detected, Kind, Normaliser, detect
from trainyard.data.paths import open_inside
from trainyard.data.quarantine import BadRow
from trainyard.data.readers import jsonl, tables
from trainyard.data.readers.chunks import CHUNK_ROWS, Bad, Chunk
from trainyard.data.readers.documents import TYPES, read_document
from trainyard.data.readers.repositories import Repository, commit_documents, file_documents, open_repository
from trainyard.data.readers.streams import GZIP_MAGIC, Limits, TextStream, gunzip, line_blocks, open_text, raw_blocks
from trainyard.data.rows import DocumentRow, TextRow
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.spec.axes import DataFormat, Port
from trainyard.spec.nodes import SourceSet

ROW_SUFFIXES = {".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv"}
UNREAD_FOLDERS = {"__pycache__", "node_modules", "venv", "site-packages"}
PARQUET_MAGIC = b"PAR1"
DOCUMENT_KIND = Kind(DOCUMENT, frozenset())
TEXT_KIND = Kind(next(shape for shape in SHAPES if shape.port is Port.TEXT), frozenset())


@dataclass
class OpenedSet:
    """A set whose format is known and whose rows are still to be read."""

    name: str
    port: Port
    format: DataFormat
    chunks: Iterator[Chunk]
    fraction: Callable[[], float]
    """Share of the bytes that were read so far."""
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    """Files of the folder that are not read, by extension."""
    why_empty: str = ""


def suffix_of(name: str) -> str:
    """The extension that says the type, looking through `.gz`."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix == ".gz" else path.suffix


def walk(folder: Path, given: SourceSet) -> list[Path]:
    """Files below a folder in a fixed order, hidden ones and installed packages left out, filtered by the globs."""
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in UNREAD_FOLDERS)
        found += [Path(where) / name for name in files if name[0] != "."]
    names = {path.relative_to(folder).as_posix(): path for path in found}
    return [path for name, path in sorted(names.items()) if wanted_name(name, given.include, given.exclude)]


def wanted_name(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Globs are held against the path below the folder and against the file name; `*` also matches `/`."""
    alternatives = (name, PurePosixPath(name).name)

    def matches(globs: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(text, glob) for text in alternatives for glob in globs)

    return (not include or matches(include)) and not matches(exclude)


def open_files(
    place: Path, given: SourceSet, wanted: DataFormat, *, roots: Sequence[Path], limits: Limits, name: str = ""
) -> OpenedSet:
    """A file or a folder as a set; `name` is the file's name if the place has another one."""
    label = name or place.name
    if place.is_dir():
        return open_folder(place, given, wanted, roots, limits)
    suffix = suffix_of(label)
    is_document = suffix in TYPES and suffix not in ROW_SUFFIXES
    if wanted is DataFormat.TEXT and is_document:
        return text_lines([place], label, roots, limits)
    if wanted is DataFormat.AUTO and suffix not in ROW_SUFFIXES and not is_document:
        is_document = not looks_like_rows(place, label, roots)
    if is_document and wanted in (DataFormat.AUTO, DataFormat.DOCUMENTS):
        return document_set([place], place.parent, label, roots=roots, limits=limits, alone=label)
    return row_set([place], wanted, label, roots, limits)


def looks_like_rows(place: Path, label: str, roots: Sequence[Path]) -> bool:
    """Whether a file without a known extension begins like JSON or Parquet; if it is not text it is refused."""
    with open_inside(place, roots) as stream:
        if stream.read(4) == PARQUET_MAGIC:
            return True
        stream.seek(0)
        head = next(open_text(stream, label, Limits()).blocks, b"")
    return head.lstrip()[:1] in (b"{", b"[")


def open_folder(place: Path, given: SourceSet, wanted: DataFormat, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """A folder of documents, or of row files if a format of rows is named."""
    files = walk(place, given)
    as_rows = wanted not in (DataFormat.AUTO, DataFormat.DOCUMENTS)
    chosen = [path for path in files if (suffix_of(path.name) in ROW_SUFFIXES) is as_rows]
    if not as_rows and not given.include:
        chosen = [path for path in chosen if path.suffix.lower() in TYPES]
    label = place.name or str(place)
    if wanted is DataFormat.TEXT and not chosen:
        chosen = [path for path in files if path.suffix.lower() in TYPES]
        opened = text_lines(chosen, label, roots, limits)
    elif as_rows and chosen:
        opened = row_set(chosen, wanted, label, roots, limits)
    else:
        opened = document_set(chosen, place, label, roots=roots, limits=limits)
    opened.skipped = Counter(path.suffix.lower()[:20] or "(no extension)" for path in set(files) - set(chosen))
    if not chosen:
        opened.why_empty = empty_folder(opened.skipped, as_rows)
    return opened


def empty_folder(skipped: Counter[str], as_rows: bool) -> str:
    if not skipped:
        return "The folder holds no files, or the globs leave none."
    types = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common(5))
    if not as_rows and ROW_SUFFIXES & skipped.keys():
        return f"It holds {types}. A folder is read as documents unless a format of rows is given."
    return f"It holds {types}, none of a type that is read."


class Files:
    """Opens the files of a set one after another and knows how far the reading is."""

    def __init__(self, paths: Sequence[Path], roots: Sequence[Path]) -> None:
        self.paths, self.roots = paths, roots
        self.total = sum(path.stat().st_size for path in paths if path.is_file())
        self.done = 0
        self.current: BinaryIO | None = None

    def __iter__(self) -> Iterator[tuple[Path, BinaryIO]]:
        for path in self.paths:
            with open_inside(path, self.roots) as self.current:
                yield path, self.current
                self.done += self.current.seek(0, os.SEEK_END)
            self.current = None

    def fraction(self) -> float:
        at = self.current.tell() if self.current is not None and not self.current.closed else 0
        return min(1.0, (self.done + at) / self.total) if self.total else 1.0


def document_set(
    paths: Sequence[Path], folder: Path, label: str, *, roots: Sequence[Path], limits: Limits, alone: str = ""
) -> OpenedSet:
    """Each file as one document. `alone` names the only file; if it is binary, that is an error of its own."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    done = [0]

    def chunks() -> Iterator[Chunk]:
        for number, path in enumerate(paths):
            name = alone or path.relative_to(folder).as_posix()
            chunk = Chunk(name)
            try:
                with open_inside(path, roots) as stream:
                    document = read_document(document_bytes(stream, name, limits), name)
            except BadRow as reason:
                if alone and reason.reason in ("binary", "empty"):
                    raise only_document(name, reason) from reason
                chunk.bad.append(Bad(0, 1, 0, reason, b""))
            except TrainyardError as error:
                if alone:
                    raise
                chunk.bad.append(Bad(0, 1, 0, BadRow(error.code, error.why or error.what), b""))
            else:
                chunk.rows, chunk.kinds, chunk.places = [document], [DOCUMENT_KIND], [name]
            done[0] = number + 1
            yield chunk

    return OpenedSet(
        label, Port.DOCUMENTS, DataFormat.DOCUMENTS, chunks(),
        lambda: sum(sizes[: done[0]]) / max(1, sum(sizes)), {"files": len(paths)},
    )  # fmt: skip


def document_bytes(stream: BinaryIO, name: str, limits: Limits) -> bytes:
    """The whole file, expanded if it is gzip. Raises `BadRow` over the cap."""
    blocks = raw_blocks(stream)
    first = next(blocks, b"")
    blocks = itertools.chain([first], blocks)
    parts, size = [], 0
    for part in gunzip(blocks, name, limits) if first.startswith(GZIP_MAGIC) else blocks:
        size += len(part)
        if size > limits.document:
            raise BadRow("too_large", f"the document is over {limits.document:,} bytes")
        parts.append(part)
    return b"".join(parts)


def only_document(name: str, reason: BadRow) -> InvalidInput:
    if reason.reason == "empty":
        return InvalidInput(f"{name} holds nothing to read.", why="It is empty.", do="Give a file with text.",
                            code="E-DATA-EMPTY")  # fmt: skip
    return InvalidInput(reason.detail, do="Give a text file, PDF or DOCX under its usual name.", code="E-DATA-BINARY")


def text_lines(paths: Sequence[Path], label: str, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """Plain text for continued pre-training: each line that is not blank is one row."""
    files = Files(paths, roots)

    def chunks() -> Iterator[Chunk]:
        for path, stream in files:
            chunk = Chunk(label if len(paths) == 1 else path.name)
            for block in line_blocks(open_text(stream, path.name, limits).blocks, limits):
                offset = block.offset
                if block.too_long:
                    reason = BadRow("line_too_long", f"the line has {block.too_long:,} bytes")
                    chunk.bad.append(Bad(len(chunk.rows), block.first_line, offset, reason, block.data))
                for number, line in enumerate(block.lines, block.first_line):
                    if line.strip():
                        add_text(chunk, line, number, offset)
                    offset += len(line) + 1
                yield chunk
                chunk = Chunk(chunk.source)
            yield chunk

    return OpenedSet(label, Port.TEXT, DataFormat.TEXT, chunks(), files.fraction, {"files": len(paths)})


def add_text(chunk: Chunk, line: bytes, number: int, offset: int) -> None:
    try:
        text = line.decode()
        if "\0" in text:
            raise BadRow("nul_character", "the line holds the character U+0000")
    except UnicodeDecodeError as error:
        reason = BadRow("not_utf8", f"byte {error.start} of the line is not UTF-8")
        chunk.bad.append(Bad(len(chunk.rows), number, offset, reason, line))
    except BadRow as reason:
        chunk.bad.append(Bad(len(chunk.rows), number, offset, reason, line))
    else:
        chunk.rows.append(TextRow(text.rstrip("\r")))
        chunk.kinds.append(TEXT_KIND)
        chunk.places.append(f"{chunk.source}:{number}")


def row_set(paths: Sequence[Path], wanted: DataFormat, label: str, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """Files of rows. The first file's first rows decide the format of all."""
    readers = [RowFile(path, label if len(paths) == 1 else path.name, roots, limits) for path in paths]
    files = Files(paths, roots)
    sample = next((rows for reader in readers if (rows := reader.sample())), [])
    if not sample and all(reader.is_blank() for reader in readers):
        shape = Detected(wanted, SHAPES[-1], SHAPES)
        return OpenedSet(label, shape.shape.port, wanted, iter(()), files.fraction, why_empty="It has no rows.")
    detected = detect(sample, wanted, label)
    normalise = Normaliser(detected)
    facts: dict[str, Any] = {"files": len(paths)}

    def chunks() -> Iterator[Chunk]:
        for reader, (_, stream) in zip(readers, files, strict=True):
            yield from reader.chunks(stream, normalise, facts)

    return OpenedSet(label, detected.shape.port, detected.format, chunks(), files.fraction, facts)


@dataclass
class RowFile:
    """One file of rows; its content, then its extension, says how it is parsed."""

    path: Path
    name: str
    roots: Sequence[Path]
    limits: Limits

    def parser(self, stream: BinaryIO) -> tuple[str, TextStream | None]:
        """`parquet`, `csv`, `values` (a JSON array) or `jsonl`, and the text if it is text."""
        magic = stream.read(4)
        stream.seek(0)
        if magic == PARQUET_MAGIC:
            return "parquet", None
        text = open_text(stream, self.name, self.limits)
        if suffix_of(self.name) in (".csv", ".tsv"):
            return "csv", text
        first = next(text.blocks, b"")
        text.blocks = itertools.chain([first], text.blocks)
        head = first.lstrip()
        if head.startswith(b"[") or (suffix_of(self.name) == ".json" and not whole_first_line(head)):
            return "values", text
        return "jsonl", text

    def is_blank(self) -> bool:
        """Whether an empty sample means an empty file, and not that every first row is broken."""
        with open_inside(self.path, self.roots) as stream:
            parser, text = self.parser(stream)
            return parser != "jsonl" or text is None or not any(block.strip() for block in text.blocks)

    def sample(self) -> list[Any]:
        """The first rows, unjudged, to detect the format."""
        with open_inside(self.path, self.roots) as stream:
            parser, text = self.parser(stream)
            if parser == "parquet" or text is None:
                with closing(tables.parquet_batches(stream, self.name, self.limits)) as batches:  # type: ignore[type-var]
                    return next(batches, [])[: jsonl.SAMPLE_ROWS]
            if parser == "jsonl":
                blocks = (block for block in line_blocks(text.blocks, self.limits) if not block.too_long)
                return next((rows for block in blocks if (rows := jsonl.sample(block))), [])
            if parser == "csv":
                records = tables.csv_records(line_blocks(text.blocks, self.limits), self.name, self.limits)
                return [record for _, _, record in itertools.islice(records, jsonl.SAMPLE_ROWS)]
            values = iter(tables.ValueStream(text.blocks, self.name, self.limits))
            return [value for _, _, value in itertools.islice(values, jsonl.SAMPLE_ROWS)]

    def chunks(self, stream: BinaryIO, normalise: Normaliser, facts: dict[str, Any]) -> Iterator[Chunk]:
        parser, text = self.parser(stream)
        if text is None:
            yield from tables.read_parquet(stream, self.name, normalise, self.limits)
            return
        facts["encoding"] = text.encoding
        facts["compressed"] = text.compressed
        if parser == "jsonl":
            yield from jsonl.read_jsonl(line_blocks(text.blocks, self.limits), self.name, normalise)
        elif parser == "csv":
            yield from tables.read_csv(line_blocks(text.blocks, self.limits), self.name, normalise, self.limits)
        else:
            yield from tables.read_json_values(text.blocks, self.name, normalise, self.limits)


def whole_first_line(head: bytes) -> bool:
    """Whether a `.json` file that begins with an object is JSON Lines: its first line is a whole value."""
    try:
        jsonl.strict_json(head.split(b"\n", 1)[0])
    except BadRow as reason:
        return reason.reason not in ("not_json", "not_utf8")
    return True


def open_repository_set(place: Path, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """A git repository as documents: its commits, then the files of the newest one."""
    repository = open_repository(place, roots, limits)
    commits = len(repository.commits())
    done = [0]

    def chunks() -> Iterator[Chunk]:
        for documents in pieces(commit_documents(repository)):
            done[0] += len(documents)
            chunk = Chunk(place.name)
            chunk.rows, chunk.places = list(documents), [document.source for document in documents]
            chunk.kinds = [DOCUMENT_KIND] * len(documents)
            yield chunk
        yield from file_chunks(repository)

    opened = OpenedSet(
        place.name, Port.DOCUMENTS, DataFormat.DOCUMENTS, chunks(),
        lambda: min(1.0, done[0] / max(1, commits)), {"commits": commits},
    )  # fmt: skip
    opened.skipped = repository.skipped
    return opened


def file_chunks(repository: Repository) -> Iterator[Chunk]:
    for name, document in file_documents(repository):
        chunk = Chunk(name)
        if isinstance(document, BadRow):
            chunk.bad.append(Bad(0, 1, 0, document, b""))
        else:
            chunk.rows, chunk.kinds, chunk.places = [document], [DOCUMENT_KIND], [name]
        yield chunk


def pieces(documents: Iterator[DocumentRow]) -> Iterator[list[DocumentRow]]:
    while piece := list(itertools.islice(documents, CHUNK_ROWS // 10)):
        yield piece
