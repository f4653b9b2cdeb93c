"""Files of rows and of lines of text: which parser a file needs, and all files of a set as one stream of chunks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainyard.data.formats.shapes import SHAPES, Kind, Normaliser, detect
from trainyard.data.functions import RowConverter
from trainyard.data.paths import find_suffix, open_inside
from trainyard.data.quarantine import BadRow
from trainyard.data.readers import columns, delimited, tables
from trainyard.data.readers.chunks import Chunk, OpenedSet
from trainyard.data.readers.selection import empty_set_error
from trainyard.data.readers.streams import WINDOWS_1252, Limits, TextStream, line_blocks, open_text, peek
from trainyard.data.rows import TextRow
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import DataFormat, Port

PARQUET_MAGIC = b"PAR1"
BATCHES = {"parquet": columns.parquet_batches, "arrow": columns.arrow_batches}
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
    data_format: DataFormat,
    label: str,
    roots: Sequence[Path],
    limits: Limits,
    *,
    convert: RowConverter | None = None,
) -> OpenedSet:
    """Files of rows. The first file's first rows, converted if they are to be, decide the format of all."""
    readers = [RowFile(path, label if len(paths) == 1 else path.name, roots, limits) for path in paths]
    files = RowFiles(paths, roots)
    sample = read_first_rows(readers)
    if not sample.records:
        raise empty_set_error(label, "It has no rows.") if sample.fault is None else no_row_error(sample.fault)
    records = list(sample.records)
    detected = detect(convert.of_sample(records) if convert else records, data_format, label)
    normalise = Normaliser(detected, convert)
    facts: dict[str, object] = {"files": len(paths)}

    def chunks() -> Iterator[Chunk]:
        for reader, (_, stream) in zip(readers, files, strict=True):
            yield from reader.chunks(stream, normalise, facts)

    return OpenedSet(label, detected.shape.port, detected.format, chunks(), files.fraction, facts)


@dataclass(frozen=True)
class Fault:
    """The first row of a file that cannot be read."""

    name: str
    line: int
    reason: BadRow
    text: str


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a file, unjudged, and the first that cannot be parsed."""

    records: Sequence[Any] = ()
    fault: Fault | None = None


def read_first_rows(readers: Iterable[RowFile]) -> FirstRows:
    """Return the sample of the first file that has one; else one without rows and the first fault of all files."""
    fault: Fault | None = None
    for reader in readers:
        sample = reader.sample()
        if sample.records:
            return sample
        fault = fault or sample.fault
    return FirstRows((), fault)


def no_row_error(fault: Fault) -> InvalidInput:
    """Return the error for a file of whose first rows none can be parsed: the fault of the first, and its text."""
    return InvalidInput(
        f"No row of {fault.name} can be read.",
        why=f"Line {fault.line} is bad ({fault.reason.reason}): {fault.reason.detail}. It is {fault.text[:100]!r}.",
        do="Correct the file; docs/data-sources.md lists what makes a row bad.",
        code="E-DATA-UNREADABLE",
    )


@dataclass
class RowFile:
    """A file of rows; its content, then its extension, says how it is parsed."""

    path: Path
    name: str
    roots: Sequence[Path]
    limits: Limits

    def parser(self, stream: BinaryIO) -> tuple[str, TextStream | None]:
        """`parquet`, `arrow`, `csv`, `values` (a JSON array) or `jsonl`, and the text if it is text."""
        magic = stream.read(8)
        stream.seek(0)
        if magic.startswith(PARQUET_MAGIC):
            return "parquet", None
        if magic.startswith((columns.ARROW_MAGIC, columns.STREAM_MAGIC)):
            return "arrow", None
        is_table = find_suffix(self.name) in (".csv", ".tsv")
        text = open_text(stream, self.name, self.limits, of_windows=is_table)
        if is_table:
            return "csv", text
        first, text.blocks = peek(text.blocks)
        head = first.lstrip()
        if head.startswith(b"[") or (find_suffix(self.name) == ".json" and not whole_first_line(head)):
            return "values", text
        return "jsonl", text

    def sample(self) -> FirstRows:
        """Return the first rows, unjudged, to detect the format."""
        with open_inside(self.path, self.roots) as stream:
            parser, text = self.parser(stream)
            if text is None:
                with closing(BATCHES[parser](stream, self.name, self.limits)) as batches:  # type: ignore[type-var]
                    return FirstRows(next(batches, [])[: tables.SAMPLE_ROWS])
            if parser == "jsonl":
                return self.sample_lines(text)
            records = list(itertools.islice(self.records(parser, text, {}), tables.SAMPLE_ROWS))
        good = [record for _, _, record, _ in records if not isinstance(record, BadRow)]
        bad = next((row for row in records if isinstance(row[2], BadRow)), None)
        return FirstRows(good, bad and Fault(self.name, bad[0], bad[2], bad[3]))

    def sample_lines(self, text: TextStream) -> FirstRows:
        """Return the first values of a file of lines that can be parsed, however late they come."""
        fault: Fault | None = None
        for block in line_blocks(text.blocks, self.limits):
            if not block.too_long and (records := tables.sample(block)):
                return FirstRows(records)
            if fault is None and (bad := tables.first_fault(block)) is not None:
                fault = Fault(self.name, *bad)
        return FirstRows((), fault)

    def records(self, parser: str, text: TextStream, facts: JsonObject) -> Iterable[tuple[int, int, Any, Any]]:
        """(line, byte offset, record, its text) of a CSV file or a JSON array."""
        if parser == "csv":
            return delimited.csv_records(line_blocks(text.blocks, self.limits), self.name, self.limits, facts)
        return tables.ValueStream(text.blocks, self.name, self.limits)

    def chunks(self, stream: BinaryIO, normalise: Normaliser, facts: JsonObject) -> Iterator[Chunk]:
        parser, text = self.parser(stream)
        if text is None:
            batches = BATCHES[parser](stream, self.name, self.limits)
            yield from columns.read_batches(batches, self.name, normalise)
            return
        facts["encoding"] = text.encoding
        facts["compressed"] = text.compressed
        if text.encoding == WINDOWS_1252:
            facts["notes"] = [*facts.get("notes", ()), f"read as {text.encoding}, as it is not UTF-8"]
        if parser == "jsonl":
            yield from tables.read_jsonl(line_blocks(text.blocks, self.limits), self.name, normalise)
        else:
            yield from tables.build_chunks(self.records(parser, text, facts), self.name, normalise)


def whole_first_line(head: bytes) -> bool:
    """Whether a `.json` file that begins with an object is JSON Lines: its first line is a whole value."""
    try:
        tables.strict_json(head.split(b"\n", 1)[0])
    except BadRow as reason:
        return reason.reason not in ("not_json", "not_utf8")
    return True
