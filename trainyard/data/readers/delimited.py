"""CSV and TSV as records: the dialect that the first lines show, and no line lost in an open quote.

The csv module reads records; what it cannot see is added: Excel's `sep=` line, comments above the header, quotes that
are escaped by a backslash, column names with spaces and capitals. A quote that is never closed swallows lines into one
record, so such a file is refused: as one bad row it would hide how many were lost.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainyard.data.formats.json_values import cell_value, text_columns
from trainyard.data.formats.shapes import COLUMN_NAMES
from trainyard.data.paths import find_suffix
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.streams import Limits, LineBlock
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.json_types import JsonObject

DELIMITERS = ",;\t|"
EXCEL_LINE = re.compile(r'"?sep=(.)"?\s*\Z', re.IGNORECASE)
ESCAPED_SIGN = re.compile(r'\\(["\\])')
SAMPLE_RECORDS = 200
LONG_RECORD = 100
"""Lines from which a record is looked at: whether it is rows that an open quote has swallowed."""
MOST_TEXT = 2000


class TableRow(NamedTuple):
    """A record of a table, with its line, the byte where it begins, and its text for the quarantine."""

    line: int
    offset: int
    record: JsonObject | BadRow
    text: str


@dataclass(frozen=True)
class Dialect:
    """Dialect of a delimited file."""

    delimiter: str
    header: tuple[str, ...]
    lines_before: int
    """Lines up to the header, that one included."""
    backslash: bool = False
    """Whether quotes inside of quotes are escaped by a backslash, not doubled."""
    spaces: bool = False
    """Whether a space follows each delimiter."""
    notes: tuple[str, ...] = ()
    """Unusual properties of the file, in words for the report."""

    def reader(self, lines: Iterable[str]) -> Any:
        texts = (unescape(line) for line in lines) if self.backslash else lines
        return csv.reader(texts, delimiter=self.delimiter, skipinitialspace=self.spaces, strict=True)

    def count_good(self, lines: Sequence[str]) -> tuple[int, int]:
        """Return how many of the first records have as many fields as the header, and how many records there are."""
        good = total = 0
        reader = self.reader(iter(lines))
        while total < SAMPLE_RECORDS:
            try:
                fields = next(reader)
            except StopIteration:
                break
            except csv.Error:
                fields = None
            if fields is None or any(fields):
                total += 1
                good += fields is not None and len(fields) == len(self.header)
        return good, total


def unescape(line: str) -> str:
    """Return a line whose escaped quotes are doubled; other backslashes stay."""
    return ESCAPED_SIGN.sub(lambda match: '""' if match[1] == '"' else "\\", line) if "\\" in line else line


def choose_dialect(lines: Sequence[str], name: str) -> Dialect:
    """The dialect of a file by its first lines. Raises `InvalidInput` (`E-DATA-UNREADABLE`) for a broken header."""
    notes: list[str] = []
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    delimiters = DELIMITERS
    if match := EXCEL_LINE.match(lines[start].rstrip("\r\n") if lines else ""):
        delimiters, start = match[1], start + 1
        notes.append(f"the delimiter is {match[1]!r} by its sep= line")
    comments = count_comments(lines[start:])
    if comments:
        start += comments
        notes.append(f"{comments} comment line{'s' if comments > 1 else ''} above the header left out")
    line = lines[start] if start < len(lines) else ""
    if find_suffix(name) == ".tsv" and "\t" in line:
        delimiters = "\t"
    usual = max(delimiters, key=line.count)
    first = Dialect(usual, read_header(line, usual, name), start + 1)
    rest = lines[start + 1 :]
    good, total = first.count_good(rest)
    best = first
    if good < total:
        alternatives = [
            replace(first, delimiter=sign, header=split(line, sign)) for sign in delimiters if sign != usual
        ]
        usable = [dialect for dialect in alternatives if len(dialect.header) > 1 or len(first.header) == 1]
        for other in (replace(first, backslash=True), *usable):
            count, _ = other.count_good(rest)
            if count > good:
                good, best = count, other
    if best.backslash:
        notes.append("quotes are escaped by a backslash")
    if len(best.header) > 1 and all(column.startswith(" ") for column in best.header[1:]):
        best = replace(best, spaces=True)
        notes.append("a space follows each delimiter")
    names, renamed = name_columns(best.header)
    if len(set(names)) < len(names):
        raise broken_header_error(name, "has two columns of the same name", line)
    if renamed:
        notes.append("columns read as " + ", ".join(f"{old!r}: {new}" for old, new in renamed.items()))
    return replace(best, header=names, notes=tuple(notes))


def count_comments(lines: Sequence[str]) -> int:
    """Lines at the beginning that are comments: they begin with `#`, and what follows has more fields."""
    count = next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if not count or count == len(lines):
        return 0
    header = lines[count]
    sign = max(DELIMITERS, key=header.count)
    fields = header.count(sign)
    return count if all(line.count(sign) < max(fields, 1) for line in lines[:count]) else 0


def read_header(line: str, delimiter: str, name: str) -> tuple[str, ...]:
    try:
        (header,) = csv.reader([line], delimiter=delimiter)
    except (csv.Error, ValueError) as error:
        raise broken_header_error(name, f"has a header that cannot be read ({error})", line) from error
    return tuple(header)


def split(line: str, delimiter: str) -> tuple[str, ...]:
    """Return the fields of a header by another delimiter; none if it cannot be read."""
    try:
        return tuple(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        return ()


def name_columns(header: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Column names without the spaces around them; a name of a format is read in any case.

    Also returns the changed names.
    """
    names = [name.strip() for name in header]
    folded = [name.casefold() if name.casefold() in COLUMN_NAMES else name for name in names]
    columns = [new if folded.count(new) == 1 else name for name, new in zip(names, folded, strict=True)]
    columns = [name or (f"column {at}" if columns.count("") > 1 else "") for at, name in enumerate(columns, 1)]
    pairs = zip(header, columns, strict=True)
    return tuple(columns), {old: new for old, new in pairs if old != new and new in COLUMN_NAMES}


def broken_header_error(name: str, problem: str, line: str) -> InvalidInput:
    return InvalidInput(
        f"{name} {problem}.", why=f"Its header is {line.strip()[:200]!r}.", do="Name each column once.",
        code="E-DATA-UNREADABLE",
    )  # fmt: skip


class CsvLines:
    """Text lines of a CSV file for the csv module, with the lines and the place of the current record."""

    def __init__(self, blocks: Iterable[LineBlock], name: str, limits: Limits, skipped: int) -> None:
        self._blocks, self._name, self._limits, self._skipped = blocks, name, limits, skipped
        self.line, self.next_offset = 0, 0
        self.record: list[str] = []
        """Lines of the current record, as far as it was read."""
        self.fault: BadRow | None = None
        """Of the current record: bytes that are not UTF-8."""

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            if block.too_long:
                raise LimitExceeded(
                    f"Line {block.first_line} of {self._name} has {block.too_long:,} bytes.",
                    why=f"A line of CSV may have {self._limits.line:,}.", do="Correct the file.",
                    code="E-DATA-UNREADABLE",
                )  # fmt: skip
            self.next_offset = block.offset
            for number, line in enumerate(block.lines, block.first_line):
                self.line, self.next_offset = number, self.next_offset + len(line) + 1
                if number > self._skipped:
                    text = self.decode(line) + "\n"
                    self.record.append(text)
                    yield text

    def decode(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.fault = self.fault or BadRow("not_utf8", f"byte {error.start} of line {self.line} is not UTF-8")
            return line.decode("utf-8", "surrogateescape")

    def begin(self) -> tuple[int, int]:
        """Begin a record; returns its line and its byte."""
        self.record, self.fault = [], None
        return max(self.line, self._skipped) + 1, self.next_offset


def csv_records(blocks: Iterator[LineBlock], name: str, limits: Limits, facts: JsonObject) -> Iterator[TableRow]:
    """Each row of a CSV file. Raises `InvalidInput` (`E-DATA-UNREADABLE`) for a header or a quote that is broken."""
    csv.field_size_limit(limits.line)
    first = next(blocks, None)
    if first is None:
        return
    blocks, head = itertools.chain([first], blocks), [] if first.too_long else first.lines
    texts = [line.decode("utf-8", "surrogateescape") + "\n" for line in itertools.islice(head, 4 * SAMPLE_RECORDS)]
    dialect = choose_dialect(texts, name)
    if dialect.notes:
        facts["notes"] = [*facts.get("notes", ()), *dialect.notes]
    lines = CsvLines(blocks, name, limits, dialect.lines_before)
    reader, never_turns = dialect.reader(lines), text_columns(dialect.header)
    if head:
        lines.next_offset = sum(len(line) + 1 for line in head[: dialect.lines_before])
    while True:
        line, offset = lines.begin()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if len(lines.record) > 1 or "end of data" in str(error):
                raise open_quote(name, line, lines.line, str(error)) from error
            yield TableRow(line, offset, lines.fault or BadRow("bad_csv", str(error)), lines.record[0][:MOST_TEXT])
            continue
        if not any(fields) or (len(fields) == 1 and not fields[0].strip()):
            continue
        if len(lines.record) > 1 and looks_swallowed(lines.record, dialect, len(fields)):
            raise open_quote(name, line, lines.line, "the lines between look like rows")
        record = lines.fault or csv_record(dialect.header, fields, never_turns)
        yield TableRow(line, offset, record, "".join(lines.record)[:MOST_TEXT])


def looks_swallowed(lines: Sequence[str], dialect: Dialect, num_fields: int) -> bool:
    """Whether a record of several lines consists of rows: the quote before them was to be a letter."""
    inner = [line for line in lines[1:-1] if line.strip()]
    num_delimiters = len(dialect.header) - 1
    rows = sum('"' not in line and line.count(dialect.delimiter) == num_delimiters for line in inner)
    if num_fields == len(dialect.header):
        return len(inner) >= LONG_RECORD and rows >= 0.9 * len(inner)
    return len(inner) >= 3 and rows >= 0.5 * len(inner)


def open_quote(name: str, first: int, last: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"{name} has a quote in line {first} that opens a field and is not closed before line {last} ({why}).",
        why=f"Lines {first} to {last} would be one row, and a part must not pass for the whole.",
        do="Close the quote, or double it where it is a letter of the text; or write the rows as JSON Lines.",
        code="E-DATA-UNREADABLE",
    )


def csv_record(header: Sequence[str], fields: list[str], texts: frozenset[str]) -> dict[str, object] | BadRow:
    if len(fields) != len(header):
        return BadRow("wrong_columns", f"the row has {len(fields)} fields, the header {len(header)}")
    record: JsonObject = dict(zip(header, fields, strict=True))
    for name, text in record.items():
        if text[:1] in ("[", "{", " ", "\n"):
            record[name] = cell_value(name, text, texts)
    return record
