"""From a place to a stream of chunks: which files a path covers, and which reader each of them needs."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from trainyard.data.formats.shapes import Kind
from trainyard.data.formats.supervised import DOCUMENT
from trainyard.data.functions import RowConverter
from trainyard.data.limited.children import Batch, DocumentReply
from trainyard.data.limited.requests import unpack_error
from trainyard.data.paths import ROW_SUFFIXES, find_suffix, open_inside
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import CHUNK_BYTES, CHUNK_ROWS, Bad, Chunk, OpenedSet
from trainyard.data.readers.documents import TYPES, load_readers, read_document
from trainyard.data.readers.repositories import Repository, commit_documents, file_contents, open_repository
from trainyard.data.readers.rowfiles import PARQUET_MAGIC, row_set, text_lines
from trainyard.data.readers.selection import FileSelection, empty_set_error, is_selected
from trainyard.data.readers.streams import GZIP_MAGIC, Limits, gunzip, open_text, peek, raw_blocks
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import DataFormat, Port

UNREAD_FOLDERS = {"__pycache__", "node_modules", "venv", "site-packages"}
DOCUMENT_KIND = Kind(DOCUMENT)


def walk(folder: Path, selection: FileSelection) -> list[Path]:
    """Files below a folder in a fixed order, hidden ones and installed packages left out, filtered by the globs."""
    paths = []
    for where, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in UNREAD_FOLDERS)
        paths += [Path(where) / name for name in files if name[0] != "."]
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return [path for name, path in sorted(names.items()) if is_selected(name, selection.include, selection.exclude)]


def unreadable(error: OSError) -> NoReturn:
    """A folder that cannot be listed is an error: its files would be missing without a word."""
    raise InvalidInput(
        f"{error.filename} cannot be read: {error.strerror}.", do="Correct its permissions, or exclude it.",
        code="E-DATA-NOT-FOUND",
    ) from error  # fmt: skip


def open_files(
    path: Path,
    selection: FileSelection,
    data_format: DataFormat,
    *,
    roots: Sequence[Path],
    limits: Limits,
    name: str = "",
    convert: RowConverter | None = None,
) -> OpenedSet:
    """A file or a folder as a set; `name` is the file's name if the place has another one. A converter takes rows."""
    label = name or path.name
    if path.is_dir():
        return open_folder(path, selection, data_format, roots, limits, convert=convert)
    if not is_selected(label, selection.include, selection.exclude):
        raise empty_set_error(label, "Its name is left out by the globs of include and exclude.")
    if convert is not None:
        return row_set([path], data_format, label, roots, limits, convert=convert)
    suffix = find_suffix(label)
    is_document = suffix in TYPES and suffix not in ROW_SUFFIXES
    if data_format is DataFormat.TEXT and is_document:
        return text_lines([path], label, roots, limits)
    if data_format is DataFormat.AUTO and suffix not in ROW_SUFFIXES and not is_document:
        # Unless it begins like JSON or Parquet; if it is not text it is refused.
        with open_inside(path, roots) as stream:
            is_parquet = stream.read(4) == PARQUET_MAGIC
            stream.seek(0)
            head = b"{" if is_parquet else next(open_text(stream, label, Limits()).blocks, b"")
        is_document = head.lstrip()[:1] not in (b"{", b"[")
    if is_document and data_format in (DataFormat.AUTO, DataFormat.DOCUMENTS):
        return document_set([path], path.parent, label, roots=roots, limits=limits, alone=label)
    return row_set([path], data_format, label, roots, limits)


def open_folder(
    folder: Path,
    selection: FileSelection,
    data_format: DataFormat,
    roots: Sequence[Path],
    limits: Limits,
    *,
    convert: RowConverter | None = None,
) -> OpenedSet:
    """Return a folder of documents, or of row files if a format of rows is named."""
    files = walk(folder, selection)
    as_rows = convert is not None or data_format not in (DataFormat.AUTO, DataFormat.DOCUMENTS)
    paths = [path for path in files if (find_suffix(path.name) in ROW_SUFFIXES) is as_rows]
    if not as_rows and not selection.include:
        paths = [path for path in paths if path.suffix.lower() in TYPES]
    label = folder.name or str(folder)
    if data_format is DataFormat.TEXT and not paths and convert is None:
        paths = [path for path in files if path.suffix.lower() in TYPES]
        opened = text_lines(paths, label, roots, limits)
    elif as_rows and paths:
        opened = row_set(paths, data_format, label, roots, limits, convert=convert)
    else:
        opened = document_set(paths, folder, label, roots=roots, limits=limits)
    opened.skipped = Counter(path.suffix.lower()[:20] or "(no extension)" for path in set(files) - set(paths))
    if not paths:
        opened.why_empty = empty_folder(opened.skipped, as_rows)
    return opened


def open_listed(
    files: Sequence[Path],
    data_format: DataFormat,
    label: str,
    roots: Sequence[Path],
    limits: Limits,
    *,
    convert: RowConverter | None = None,
) -> OpenedSet:
    """Files of rows that were chosen already, as one set; those of plain text are lines."""
    as_lines = data_format is DataFormat.TEXT or (data_format is DataFormat.AUTO and label_suffixes(files) <= {".txt"})
    if convert is None and as_lines and not label_suffixes(files) & ROW_SUFFIXES:
        return text_lines(files, label, roots, limits)
    return row_set(files, data_format, label, roots, limits, convert=convert)


def label_suffixes(files: Sequence[Path]) -> set[str]:
    return {find_suffix(path.name) for path in files}


def empty_folder(skipped: Counter[str], as_rows: bool) -> str:
    if not skipped:
        return "The folder contains no files, or the globs leave none."
    types = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common(5))
    if not as_rows and ROW_SUFFIXES & skipped.keys():
        return f"It contains {types}. A folder is read as documents unless a format of rows is given."
    return f"It contains {types}, none of a type that is read."


def document_set(
    paths: Sequence[Path], folder: Path, label: str, *, roots: Sequence[Path], limits: Limits, alone: str = ""
) -> OpenedSet:
    """Return each file as one document. `alone` names the only file; if it is binary, that is an error of its own."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in paths]
    names = [alone or path.relative_to(folder).as_posix() for path in paths]
    done = [0]

    def read(number: int) -> DocumentReply:
        with open_inside(paths[number], roots) as stream:
            return DocumentReply(read_document(document_bytes(stream, names[number], limits), names[number]))

    def chunks() -> Iterator[Chunk]:
        load_readers(names)
        for reply in Batch(sizes, read, limits).replies():
            chunk = document_chunk(names[done[0]], reply)
            if alone and reply.error is not None:
                raise unpack_error(reply.error)
            if alone and reply.reason == "empty":
                raise empty_set_error(alone, "It is empty.")
            if alone and reply.reason == "binary":
                do = "Give a text file, PDF or DOCX under its usual name."
                raise InvalidInput(reply.detail, do=do, code="E-DATA-UNREADABLE")
            done[0] += 1
            yield chunk

    return OpenedSet(
        label, Port.DOCUMENTS, DataFormat.DOCUMENTS, chunks(),
        lambda: sum(sizes[: done[0]]) / max(1, sum(sizes)), {"files": len(paths)},
    )  # fmt: skip


def document_chunk(name: str, reply: DocumentReply) -> Chunk:
    """A document, or the reason why there is none, as a chunk of one row."""
    if reply.row is None:
        return Chunk(name, bad=[Bad(0, 1, 0, BadRow(reply.reason, reply.detail), b"")])
    return Chunk(name, [reply.row], [DOCUMENT_KIND], [name], size=len(reply.row.text))


def document_bytes(stream: BinaryIO, name: str, limits: Limits) -> bytes:
    """Return the whole file, expanded if it is gzip. Raises `BadRow` over the cap."""
    first, blocks = peek(raw_blocks(stream))
    parts, size = [], 0
    for part in gunzip(blocks, name, limits) if first.startswith(GZIP_MAGIC) else blocks:
        size += len(part)
        if size > limits.document:
            raise BadRow("too_large", f"the document is over {limits.document:,} bytes")
        parts.append(part)
    return b"".join(parts)


def open_repository_set(path: Path, selection: FileSelection, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """A git repository as documents: its commits, then the files of the newest one, both filtered by the globs."""
    repository = open_repository(path, roots, limits)
    if selection.include or selection.exclude:
        repository.name_filter = lambda name: is_selected(name, selection.include, selection.exclude)
        repository.any_type = bool(selection.include)
    commits = len(repository.commits())
    done = [0]

    def chunks() -> Iterator[Chunk]:
        documents = commit_documents(repository)
        while piece := list(itertools.islice(documents, CHUNK_ROWS // 10)):
            done[0] += len(piece)
            yield Chunk(path.name, [*piece], [DOCUMENT_KIND] * len(piece), [document.source for document in piece])
        yield from file_chunks(repository)

    opened = OpenedSet(
        path.name, Port.DOCUMENTS, DataFormat.DOCUMENTS, chunks(),
        lambda: min(1.0, done[0] / max(1, commits)), {"commits": commits},
    )  # fmt: skip
    opened.skipped = repository.skipped
    if repository.name_filter is not None:
        opened.why_empty = "The globs leave no file of it, and no commit that changes one."
    return opened


def file_chunks(repository: Repository) -> Iterator[Chunk]:
    """The files of the newest commit. Their bytes are collected here, and read in children as other documents are."""
    pending: list[tuple[str, bytes | BadRow]] = []

    def read(number: int) -> DocumentReply:
        name, data = pending[number]
        if isinstance(data, BadRow):
            raise data
        return DocumentReply(read_document(data, name))

    def replies() -> Iterator[Chunk]:
        load_readers([name for name, _ in pending])
        sizes = [0 if isinstance(data, BadRow) else len(data) for _, data in pending]
        for (name, _), reply in zip(pending, Batch(sizes, read, repository.limits).replies(), strict=True):
            source = f"{repository.path.name}/{name}"
            if reply.row is not None:
                reply.row.source = source
            yield document_chunk(source, reply)

    size = 0
    for name, data in file_contents(repository):
        pending.append((name, data))
        size += 0 if isinstance(data, BadRow) else len(data)
        if size >= CHUNK_BYTES or len(pending) >= CHUNK_ROWS:
            yield from replies()
            size = 0
            pending.clear()
    if pending:
        yield from replies()
