"""A page of rows out of a stored set: Arrow files by random access, quarantines line by line; long texts are cut.

A page is bounded three ways: rows (the request), characters (`PAGE_CHARS`) and, where rows are searched for, rows that
are looked at (`SCANNED`). The offset of the next page continues after any of the three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import ipc

from trainyard.cancellation import iterate_until_departure
from trainyard.data.quarantine import QUARANTINE_FILE
from trainyard.data.rows import HELD_OUT_FOLDER, ROWS_FILE
from trainyard.errors import Corrupt

ROWS, DROPPED = "rows", "dropped"
PAGE_CHARS = 4_000_000
SCANNED = 100_000
"""Rows that one search looks at; it continues with the next page."""
LONGEST_LIST = 1_000
BLOCK_BYTES = 1 << 20

Values = dict[str, Any]


@dataclass
class CutRow:
    """A row with its long texts cut."""

    index: int
    values: Values
    cut: list[str]
    """Paths of shortened texts, such as `messages.1.content`."""


@dataclass
class RowPage:
    rows: list[CutRow] = field(default_factory=list)
    next_offset: int | None = None


def list_parts(folder: Path) -> dict[str, Path]:
    """Return name -> file of the sets of rows in the folder of a port."""
    parts = {ROWS: folder / ROWS_FILE}
    parts |= {path.stem: path for path in sorted((folder / HELD_OUT_FOLDER).glob("*.arrow"))}
    parts[DROPPED] = folder / QUARANTINE_FILE
    return {name: path for name, path in parts.items() if path.is_file()}


def count_rows(path: Path) -> int:
    """Return the rows of a file. Raises `Corrupt` (`E-CORRUPT`)."""
    if path.suffix == ".jsonl":
        with path.open("rb") as stream:
            blocks = iterate_until_departure(iter(lambda: stream.read(BLOCK_BYTES), b""))
            return sum(block.count(b"\n") for block in blocks)
    with open_rows(path) as reader:
        return sum(batch.num_rows for batch in batches(reader, path))


def read_page(
    path: Path, *, offset: int, limit: int, text_chars: int, accepts: Callable[[Values], bool] | None = None
) -> RowPage:
    """Return the rows of a file from an offset on, those that are accepted. Raises `Corrupt` (`E-CORRUPT`)."""
    page, left, index = RowPage(), PAGE_CHARS, offset
    most = SCANNED if accepts else limit
    rows = read_lines(path, offset) if path.suffix == ".jsonl" else read_arrow(path, offset, most)
    for index, values in enumerate(iterate_until_departure(islice(rows, most + 1)), offset):
        if index - offset >= most or len(page.rows) >= limit or (page.rows and left <= 0):
            page.next_offset = index
            break
        if accepts is None or accepts(values):
            row = cut_row(index, values, text_chars)
            left -= estimate_length(row.values)
            page.rows.append(row)
    return page


def cut_row(index: int, values: Values, text_chars: int) -> CutRow:
    """Return a row whose texts have at most `text_chars` characters, and its lists at most `LONGEST_LIST` members."""
    cut: list[str] = []

    def shorten(value: Any, path: str) -> Any:
        if isinstance(value, str) and len(value) > text_chars:
            cut.append(path)
            return value[:text_chars]
        if isinstance(value, dict):
            return {key: shorten(member, f"{path}.{key}" if path else str(key)) for key, member in value.items()}
        if isinstance(value, list):
            if len(value) > LONGEST_LIST:
                cut.append(path)
            return [shorten(member, f"{path}.{position}") for position, member in enumerate(value[:LONGEST_LIST])]
        return value

    return CutRow(index, shorten(values, ""), cut)


def estimate_length(value: object) -> int:
    """About how many characters a value takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + estimate_length(member) for key, member in value.items())
    return sum(map(estimate_length, value)) if isinstance(value, list) else 8


def contains(value: object, text: str) -> bool:
    """Return whether any text of a row contains this one, whatever its case; `text` is folded already."""
    if isinstance(value, str):
        return text in value.casefold()
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(contains(member, text) for member in members)


def open_rows(path: Path) -> ipc.RecordBatchFileReader:
    """Raises `Corrupt` (`E-CORRUPT`)."""
    try:
        return ipc.open_file(pa.memory_map(str(path)))
    except (pa.ArrowException, OSError) as error:
        raise damaged_error(path, str(error)) from error


def batches(reader: ipc.RecordBatchFileReader, path: Path) -> Iterator[pa.RecordBatch]:
    """Return every batch; its columns stay on disk until they are read."""
    try:
        for number in iterate_until_departure(range(reader.num_record_batches)):
            yield reader.get_batch(number)
    except (pa.ArrowException, OSError) as error:
        raise damaged_error(path, str(error)) from error


def read_arrow(path: Path, offset: int, most: int) -> Iterator[Values]:
    """Yield the rows from an offset on, as Python values, some hundred at a time."""
    step = min(most + 1, 500)
    with open_rows(path) as reader:
        before = 0
        for batch in batches(reader, path):
            start = max(0, offset - before)
            before += batch.num_rows
            for first in range(start, batch.num_rows, step):
                yield from batch.slice(first, step).to_pylist()


def read_lines(path: Path, offset: int) -> Iterator[Values]:
    """Yield the objects of a file of JSON lines. Raises `Corrupt` (`E-CORRUPT`) for a line that is none."""
    with path.open("rb") as stream:
        for number, line in enumerate(islice(iterate_until_departure(stream), offset, None), offset + 1):
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise damaged_error(path, f"Line {number}: {error}") from error
            if not isinstance(value, dict):
                raise damaged_error(path, f"Line {number} is not an object.")
            yield value


def damaged_error(path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"The stored file {path.name} cannot be read.",
        why=why[:500],
        do="Run the chain again with --refresh.",
        code="E-CORRUPT",
    )
