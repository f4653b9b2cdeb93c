"""JSON arrays, CSV and Parquet as chunks of rows, each read piece by piece so that memory stays flat."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet

from trainyard.data.formats.shapes import Normaliser
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk
from trainyard.data.formats.strict import finite, refuse_constant, unique_keys
from trainyard.data.readers.streams import Limits, LineBlock
from trainyard.errors import InvalidInput, LimitExceeded

BETWEEN_VALUES = re.compile(r"[\s,]*")
JSON_COLUMNS = {"messages", "conversations", "tools", "functions", "history", "input"}
"""CSV columns whose text may be JSON; a prompt or an answer that is a list of turns begins with `[{`."""


class ValueStream:
    """The values of a JSON array (or of values one after another), parsed out of a sliding window of text."""

    def __init__(self, blocks: Iterator[bytes], name: str, limits: Limits) -> None:
        self._blocks, self._name, self._limits = blocks, name, limits
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._fault: BadRow | None = None
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._lenient(unique_keys, dict),
            parse_float=self._lenient(finite, float),
            parse_constant=self._lenient(refuse_constant, float),
        )
        self._window, self._at = "", 0
        self.line, self.offset = 1, 0

    def _lenient(self, strict: Callable[[Any], Any], instead: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A hook that continues to the end of a bad value: the end is needed to find the next one in an array."""

        def hook(given: Any) -> Any:
            try:
                return strict(given)
            except BadRow as fault:
                self._fault = self._fault or fault
                return instead(given)

        return hook

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """(line, byte offset, value or `BadRow`) of each value."""
        self._skip(re.compile(r"\s*\[?"))
        while True:
            self._skip(BETWEEN_VALUES)
            if self._at >= len(self._window) or self._window[self._at] == "]":
                if self._window[self._at :].strip() not in ("", "]"):
                    raise self._broken("text follows the end of the array")
                return
            self._fault = None
            value, end = self._parse()
            yield self.line, self.offset, self._fault or value
            self._advance(end)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            match = pattern.match(self._window, self._at)
            assert match is not None
            self._advance(match.end())
            if self._at < len(self._window) or not self._refill():
                return

    def _advance(self, end: int) -> None:
        passed = self._window[self._at : end]
        self.line += passed.count("\n")
        self.offset += len(passed) if passed.isascii() else len(passed.encode("utf-8", "surrogateescape"))
        self._at = end

    def _refill(self) -> bool:
        """Drop what was read and add the next block; False at the end of the file."""
        block = next(self._blocks, None)
        if block is None:
            return False
        self._window, self._at = self._window[self._at :] + self._decode(block), 0
        return True

    def _parse(self) -> tuple[Any, int]:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                if len(self._window) - self._at > self._limits.line:
                    raise self._broken(f"one value is longer than {self._limits.line:,} characters") from error
                if not self._refill():
                    raise self._broken(f"{error.msg} behind it") from error
            except RecursionError as error:
                raise self._broken("it is nested too deeply") from error
            except ValueError as error:
                raise self._broken("a number has too many digits") from error
            else:
                if end < len(self._window) or not self._refill():
                    return value, end

    def _broken(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._name} is not valid JSON in the value at line {self.line}, byte {self.offset}: {why}.",
            why="The values behind it cannot be found, and a part must not pass for the whole.",
            do="Correct the file, or write it as JSON Lines, where one bad row costs only itself.",
            code="E-DATA-UNREADABLE",
        )


def chunks_of(records: Iterable[tuple[int, int, Any]], name: str, normalise: Normaliser) -> Iterator[Chunk]:
    """Chunks of records that come as (line, offset, record)."""
    chunk, begin = Chunk(name), 0
    for line, offset, record in records:
        chunk.add(normalise, record, line, offset, record)
        chunk.size = offset - begin
        if len(chunk) >= CHUNK_ROWS or chunk.size >= CHUNK_BYTES:
            yield chunk
            chunk, begin = Chunk(name), offset
    yield chunk


class CsvLines:
    """Text lines of a CSV file for the csv module, remembering where the current record began."""

    def __init__(self, blocks: Iterator[LineBlock], name: str, limits: Limits) -> None:
        self._blocks, self._name, self._limits = blocks, name, limits
        self.line, self.offset, self._next = 0, 0, 0

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            if block.too_long:
                raise LimitExceeded(
                    f"Line {block.first_line} of {self._name} has {block.too_long:,} bytes.",
                    why=f"A line of CSV may have {self._limits.line:,}.", do="Correct the file.",
                    code="E-DATA-UNREADABLE",
                )  # fmt: skip
            self._next = block.offset
            for number, line in enumerate(block.lines, block.first_line):
                self.line, self.offset = number, self._next
                self._next += len(line) + 1
                yield line.decode("utf-8", "surrogateescape") + "\n"


def csv_records(
    blocks: Iterator[LineBlock], name: str, limits: Limits
) -> Iterator[tuple[int, int, dict[str, Any] | BadRow]]:
    """(line, byte offset, record) of each row. The delimiter is the one of `,` `;` and tab that the header has most."""
    lines = CsvLines(blocks, name, limits)
    texts = iter(lines)
    header_line = next((line for line in texts if line.strip()), "")
    delimiter = max(",;\t", key=header_line.count)
    header = csv_header(header_line, delimiter, name)
    csv.field_size_limit(limits.line)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    while True:
        started = lines.line + 1, lines._next
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield *started, BadRow("bad_csv", str(error))
            continue
        if fields and any(fields):
            yield *started, csv_record(header, fields)


def csv_header(line: str, delimiter: str, name: str) -> list[str]:
    try:
        (header,) = csv.reader([line], delimiter=delimiter)
        problem = "has two columns of the same name" if len(set(header)) < len(header) else ""
    except (csv.Error, ValueError) as error:
        header, problem = [], f"has a header that cannot be read ({error})"
    if problem:
        raise InvalidInput(
            f"{name} {problem}.", why=f"Its header is {line.strip()[:200]!r}.", do="Name each column once.",
            code="E-DATA-UNREADABLE",
        )  # fmt: skip
    return header


def csv_record(header: list[str], fields: list[str]) -> dict[str, Any] | BadRow:
    if len(fields) != len(header):
        return BadRow("wrong_columns", f"the row has {len(fields)} fields, the header {len(header)}")
    record: dict[str, Any] = dict(zip(header, fields, strict=True))
    for name, text in record.items():
        if text.startswith("[{") or (name in JSON_COLUMNS and text.startswith(("[", "{"))):
            try:
                record[name] = json.loads(text, object_pairs_hook=unique_keys)
            except (BadRow, ValueError, RecursionError):
                continue  # a text that only begins like JSON stays a text; a shape that needs a list will say so
    return record


def parquet_batches(stream: BinaryIO, name: str, limits: Limits) -> Iterator[list[dict[str, Any]]]:
    """Rows of a Parquet file, 1,000 at a time; null columns are left out.

    Raises `InvalidInput` (`E-DATA-UNREADABLE`), `LimitExceeded` (`E-DATA-LIMIT`).
    """
    try:
        # A value that is once in a dictionary and in every row counts as often as it is repeated, and is decoded
        # after it was counted.
        described = parquet.ParquetFile(stream, pre_buffer=False)
        columns = map(described.metadata.schema.column, range(described.metadata.num_columns))
        repeated = [column.path for column in columns if is_text(column)]
        plain = described.schema_arrow
        file = parquet.ParquetFile(stream, pre_buffer=False, read_dictionary=repeated)
        taken = stream.seek(0, 2)
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        given = sum(group.total_byte_size for group in groups)
        if limits.exceeded(given, taken):
            raise parquet_bomb(name, given, taken)
        given = 0
        for batch in file.iter_batches(CHUNK_ROWS, use_threads=False):
            size = sum(map(decoded_bytes, batch.columns))
            given += size
            if limits.exceeded(given, taken):
                raise parquet_bomb(name, given, taken)
            step = max(1, batch.num_rows * CHUNK_BYTES // max(CHUNK_BYTES, size))
            for first in range(0, batch.num_rows, step):
                rows = pa.Table.from_batches([batch.slice(first, step)]).cast(plain).to_pylist()
                yield [{key: value for key, value in row.items() if value is not None} for row in rows]
    except MemoryError:
        raise  # Arrow's is one of its own exceptions, too; who set the limit says what it means
    except (pa.ArrowException, ValueError, LookupError, ArithmeticError, OSError) as error:
        raise InvalidInput(
            f"{name} is not a readable Parquet file: {str(error).splitlines()[0][:200]}.",
            do="Write the file again.",
            code="E-DATA-UNREADABLE",
        ) from error


def is_text(column: parquet.ColumnSchema) -> bool:
    """Whether a column contains texts or bytes."""
    return column.physical_type == "BYTE_ARRAY" and column.logical_type.type in ("STRING", "NONE", "JSON")


def decoded_bytes(column: pa.Array) -> int:
    """Bytes of a column when each row has its own copy of a value."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        if not (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            return 8 * len(column)
        return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(decoded_bytes, column.flatten()))
    if pa.types.is_map(kind):
        return 8 * len(column) + decoded_bytes(column.keys) + decoded_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return 8 * len(column) + decoded_bytes(column.flatten())
    return int(column.nbytes)


def parquet_bomb(name: str, given: int, taken: int) -> LimitExceeded:
    return LimitExceeded(
        f"{name} expands to {given:,} bytes out of {taken:,}.",
        why="It repeats large values; it looks like a decompression bomb.",
        do="Give the rows as JSON Lines if they are meant.", code="E-DATA-LIMIT",
    )  # fmt: skip


def read_parquet(stream: BinaryIO, name: str, normalise: Normaliser, limits: Limits) -> Iterator[Chunk]:
    """Chunks of a Parquet file. Rows have no line; their number counts from 1."""
    before = 0
    for rows in parquet_batches(stream, name, limits):
        yield from chunks_of(((number, 0, row) for number, row in enumerate(rows, before + 1)), name, normalise)
        before += len(rows)
