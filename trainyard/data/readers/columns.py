"""Parquet and Arrow files as rows, 1,000 at a time, with the values that the same rows have as JSON.

Arrow gives every struct all keys of its column, so nulls inside of structs are absent keys; maps are objects, decimals
numbers, dates texts, bytes the text in them, and NaN, as pandas writes what is missing, is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import ipc, parquet

from trainyard.data.formats.json_values import find_repeated, to_json_value
from trainyard.data.formats.shapes import Normaliser
from trainyard.data.readers.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk
from trainyard.data.readers.streams import Limits
from trainyard.data.readers.tables import build_chunks
from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.json_types import JsonObject

ROW_BYTES = 64
"""What a row costs at least once it is read: its id, its place and its lists. A file repeats a letter for nothing."""
ARROW_MAGIC, STREAM_MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
"""How Arrow's files begin, and its streams, which `datasets` writes."""
Restore = Callable[[Any], Any]


def parquet_batches(stream: BinaryIO, name: str, limits: Limits) -> Iterator[list[dict[str, object]]]:
    """Rows of a Parquet file, 1,000 at a time; null columns are left out.

    Raises `InvalidInput` (`E-DATA-UNREADABLE`), `LimitExceeded` (`E-DATA-LIMIT`).
    """
    try:
        # A value that is once in a dictionary and in every row counts as often as it is repeated, and is decoded
        # after it was counted.
        described = parquet.ParquetFile(stream, pre_buffer=False)
        columns = map(described.metadata.schema.column, range(described.metadata.num_columns))
        repeated = [column.path for column in columns if is_text(column)]
        file = parquet.ParquetFile(stream, pre_buffer=False, read_dictionary=repeated)
        file_bytes = stream.seek(0, 2)
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        expanded = sum(group.total_byte_size for group in groups)
        if limits.are_exceeded(expanded, file_bytes):
            raise column_bomb(name, expanded, file_bytes)
        batches = file.iter_batches(CHUNK_ROWS, use_threads=False)
        yield from iterate_rows(batches, described.schema_arrow, name, file_bytes, limits)
    except MemoryError:
        raise  # Arrow's is one of its own exceptions, too; who set the limit says what it means
    except (pa.ArrowException, ValueError, LookupError, ArithmeticError, OSError) as error:
        raise unreadable(name, "Parquet", error) from error


def arrow_batches(stream: BinaryIO, name: str, limits: Limits) -> Iterator[list[dict[str, object]]]:
    """Rows of an Arrow file or stream. Raises as `parquet_batches`."""
    try:
        is_stream = stream.read(len(STREAM_MAGIC)) == STREAM_MAGIC
        file_bytes = stream.seek(0, 2)
        stream.seek(0)
        reader = ipc.open_stream(stream) if is_stream else ipc.open_file(stream)
        yield from iterate_rows(arrow_parts(reader), reader.schema, name, file_bytes, limits)
    except MemoryError:
        raise
    except (pa.ArrowException, ValueError, LookupError, ArithmeticError, OSError) as error:
        raise unreadable(name, "Arrow", error) from error


def arrow_parts(reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader, checked, at most 1,000 rows each."""
    if isinstance(reader, ipc.RecordBatchFileReader):
        batches = map(reader.get_batch, range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for batch in batches:
        batch.validate(full=True)
        for first in range(0, batch.num_rows, CHUNK_ROWS):
            yield batch.slice(first, CHUNK_ROWS)


def iterate_rows(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, name: str, file_bytes: int, limits: Limits
) -> Iterator[list[JsonObject]]:
    """Yield the rows of batches, as long as they are in proportion to the `file_bytes` bytes of the file."""
    if (repeated := find_repeated(schema.names)) is not None:
        raise InvalidInput(
            f"{name} has two columns of the name {repeated[:40]!r}.", why="A row could have only one of their values.",
            do="Name each column once.", code="E-DATA-UNREADABLE",
        )  # fmt: skip
    target = pa.schema([field.with_type(readable(field.type)) for field in schema])
    restore = restorers(target)
    expanded = 0
    for batch in batches:
        size = sum(map(count_decoded_bytes, batch.columns)) + ROW_BYTES * batch.num_rows
        expanded += size
        if limits.are_exceeded(expanded, file_bytes):
            raise column_bomb(name, expanded, file_bytes)
        step = max(1, batch.num_rows * CHUNK_BYTES // max(CHUNK_BYTES, size))
        for first in range(0, batch.num_rows, step):
            rows = pa.Table.from_batches([batch.slice(first, step)])
            if rows.schema != target:
                rows = cast_columns(rows, target)
            yield [restore_row(row, restore) for row in rows.to_pylist()]


def cast_columns(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Return the rows with every column in the type of the target where Arrow can cast it; else it is read as it is."""
    columns = []
    for column, field in zip(rows.columns, target, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowNotImplementedError:
            columns.append(column)
    return pa.table(columns, names=rows.column_names)


def restore_row(row: dict[str, object], restore: dict[str, Restore]) -> dict[str, object]:
    values = {key: value for key, value in row.items() if value is not None}
    if restore:
        for key in restore.keys() & values.keys():
            values[key] = restore[key](values[key])
        return {key: value for key, value in values.items() if value is not None}
    return values


def readable(kind: pa.DataType) -> pa.DataType:
    """Return a type of the same values that Arrow can cast to: no dictionaries, views or types of extensions."""
    inner = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    if pa.types.is_string_view(inner) or pa.types.is_binary_view(inner):
        return pa.string() if pa.types.is_string_view(inner) else pa.binary()
    if pa.types.is_struct(inner):
        return pa.struct([field.with_type(readable(field.type)) for field in inner])
    if pa.types.is_map(inner):
        return pa.map_(readable(inner.key_type), readable(inner.item_type))
    if is_list(inner):
        make = pa.large_list if pa.types.is_large_list(inner) else pa.list_
        return make(readable(inner.value_type))
    return inner


def is_list(kind: pa.DataType) -> bool:
    tests = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, test)(kind) for test in tests)


def restorer(kind: pa.DataType) -> Restore | None:
    """Return the function that gives a value of this type the form that JSON has; None where Python's is the same."""
    if pa.types.is_struct(kind):
        return struct_restorer(kind)
    if pa.types.is_map(kind):
        restore_item = restorer(kind.item_type) or (lambda value: value)
        return lambda pairs: {
            str(to_json_value(key)): None if value is None else restore_item(value) for key, value in pairs
        }
    if is_list(kind):
        inner = restorer(kind.value_type)
        return inner and (lambda values: [None if value is None else inner(value) for value in values])
    if pa.types.is_floating(kind):
        return lambda value: None if math.isnan(value) else value
    simple = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)
    return None if simple or pa.types.is_large_string(kind) else to_json_value


def restorers(fields: Iterable[pa.Field]) -> dict[str, Restore]:
    """Return the functions of the columns, or of the fields of a struct, whose values JSON has in another form."""
    return {field.name: function for field in fields if (function := restorer(field.type)) is not None}


def struct_restorer(kind: pa.DataType) -> Restore:
    inner = restorers(kind)
    return lambda value: restore_row(value, inner)


def is_text(column: parquet.ColumnSchema) -> bool:
    """Whether a column contains texts or bytes."""
    return column.physical_type == "BYTE_ARRAY" and column.logical_type.type in ("STRING", "NONE", "JSON")


def count_decoded_bytes(column: pa.Array) -> int:
    """Bytes of a column when each row has its own copy of a value."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        if not (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            return 8 * len(column)
        return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(count_decoded_bytes, column.flatten()))
    if pa.types.is_map(kind):
        return 8 * len(column) + count_decoded_bytes(column.keys) + count_decoded_bytes(column.items)
    if is_list(kind):
        return 8 * len(column) + count_decoded_bytes(column.flatten())
    return int(column.nbytes)


def column_bomb(name: str, expanded: int, file_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"{name} expands to {expanded:,} bytes out of {file_bytes:,}.",
        why="It repeats values or rows; it looks like a decompression bomb.",
        do="Give the rows as JSON Lines if they are meant, or set max_rows.", code="E-DATA-LIMIT",
    )  # fmt: skip


def unreadable(name: str, kind: str, error: BaseException) -> InvalidInput:
    return InvalidInput(
        f"{name} is not a readable {kind} file: {(str(error).splitlines() or [repr(error)])[0][:200]}.",
        do="Write the file again.",
        code="E-DATA-UNREADABLE",
    )


def read_batches(
    batches: Iterator[Sequence[Mapping[str, object]]], name: str, normalise: Normaliser
) -> Iterator[Chunk]:
    """Chunks of the rows. Rows have no line; their number counts from 1."""
    before = 0
    for rows in batches:
        numbered = ((number, 0, row, row) for number, row in enumerate(rows, before + 1))
        yield from build_chunks(numbered, name, normalise)
        before += len(rows)
