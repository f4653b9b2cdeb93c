"""Files of rows and of lines of text: which parser a file needs, and all files of a set as one stream of chunks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainyard.data.formats.converters import RowConverter
from trainyard.data.formats.shapes import SHAPES, Kind, Normaliser, detect
from trainyard.data.paths import open_inside, suffix_of
from trainyard.data.quarantine import BadRow
from trainyard.data.readers import jsonl, tables
from trainyard.data.readers.chunks import Chunk, OpenedSet, nothing_to_read
from trainyard.data.readers.streams import Limits, TextStream, line_blocks, open_text, peek
from trainyard.data.rows import TextRow
from trainyard.spec.axes.data import DataFormat, Port

PARQUET_MAGIC = b"PAR1"
TEXT_KIND = Kind(next(shape for shape in SHAPES if shape.port is Port.TEXT))


class RowFiles:
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


def text_lines(paths: Sequence[Path], label: str, roots: Sequence[Path], limits: Limits) -> OpenedSet:
    """Plain text for continued pre-training: each line that is not blank is one row."""
    files = RowFiles(paths, roots)

    def chunks() -> Iterator[Chunk]:
        for path, stream in files:
            name = label if len(paths) == 1 else path.name
            for block in line_blocks(open_text(stream, path.name, limits).blocks, limits):
                chunk, offset = Chunk(name, size=block.end), block.offset
                if block.too_long:
                    reason = BadRow("line_too_long", f"the line has {block.too_long:,} bytes")
                    chunk.add_bad(block.first_line, offset, reason, block.data)
                for number, line in enumerate(block.lines, block.first_line):
                    if line.strip():
                        chunk.add(read_line, line, number, offset, line)
                    offset += len(line) + 1
                yield chunk

    return OpenedSet(label, Port.TEXT, DataFormat.TEXT, chunks(), files.fraction, {"files": len(paths)})


def read_line(line: bytes) -> tuple[TextRow, Kind]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"byte {error.start} of the line is not UTF-8") from error
    if "\0" in text:
        raise BadRow("nul_character", "the line contains the character U+0000")
    return TextRow(text.rstrip("\r")), TEXT_KIND


def row_set(
    paths: Sequence[Path],
    wanted: DataFormat,
    label: str,
    roots: Sequence[Path],
    limits: Limits,
    *,
    convert: RowConverter | None = None,
) -> OpenedSet:
    """Files of rows. The first file's first rows, converted if they are to be, decide the format of all."""
    readers = [RowFile(path, label if len(paths) == 1 else path.name, roots, limits) for path in paths]
    files = RowFiles(paths, roots)
    sample = next((rows for reader in readers if (rows := reader.sample())), [])
    if not sample and all(reader.is_blank() for reader in readers):
        raise nothing_to_read(label, "It has no rows.")
    detected = detect(convert.of_sample(sample) if convert else sample, wanted, label)
    normalise = Normaliser(detected, convert)
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
        first, text.blocks = peek(text.blocks)
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
            return [record for *_, record in itertools.islice(self.records(parser, text), jsonl.SAMPLE_ROWS)]

    def records(self, parser: str, text: TextStream) -> Iterable[tuple[int, int, Any]]:
        """(line, byte offset, record) of a CSV file or a JSON array."""
        if parser == "csv":
            return tables.csv_records(line_blocks(text.blocks, self.limits), self.name, self.limits)
        return tables.ValueStream(text.blocks, self.name, self.limits)

    def chunks(self, stream: BinaryIO, normalise: Normaliser, facts: dict[str, Any]) -> Iterator[Chunk]:
        parser, text = self.parser(stream)
        if text is None:
            yield from tables.read_parquet(stream, self.name, normalise, self.limits)
            return
        facts["encoding"] = text.encoding
        facts["compressed"] = text.compressed
        if parser == "jsonl":
            yield from jsonl.read_jsonl(line_blocks(text.blocks, self.limits), self.name, normalise)
        else:
            yield from tables.chunks_of(self.records(parser, text), self.name, normalise)


def whole_first_line(head: bytes) -> bool:
    """Whether a `.json` file that begins with an object is JSON Lines: its first line is a whole value."""
    try:
        jsonl.strict_json(head.split(b"\n", 1)[0])
    except BadRow as reason:
        return reason.reason not in ("not_json", "not_utf8")
    return True
