"""SQL over local files by DuckDB, inside of a reading process: its memory, its CPU time, no connections, no secrets.

DuckDB itself is closed as well: it opens the named files and nothing else, writes nothing, loads no extension, and its
settings cannot be changed by the query. The query is one statement that reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainyard.data.formats.json_values import row_values, text_columns
from trainyard.data.formats.shapes import Normaliser, detect
from trainyard.data.functions import RowConverter
from trainyard.data.paths import find_suffix, open_inside
from trainyard.data.readers.chunks import CHUNK_ROWS, Chunk, OpenedSet
from trainyard.data.readers.columns import restore_row, restorers
from trainyard.data.readers.selection import empty_set_error
from trainyard.data.readers.tables import SAMPLE_ROWS, build_chunks
from trainyard.data.remote.databases import bad_query, refuse_repeated_columns
from trainyard.errors import LimitExceeded, Unavailable, first_line
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.spec.axes.data import DataFormat

READERS = {
    ".parquet": "read_parquet", ".csv": "read_csv", ".tsv": "read_csv", ".json": "read_json", ".jsonl": "read_json",
    ".ndjson": "read_json",
}  # fmt: skip
"""Extension -> DuckDB's function for such files."""
EXACT = "dateformat='%Y-%m-%d', timestampformat='%Y-%m-%d %H:%M:%S'"
"""Dates and times are recognised only in the spelling that they have as text again: a text stays what it is."""
OPTIONS = {
    "read_parquet": "",
    "read_csv": f", {EXACT}, auto_type_candidates=['BOOLEAN', 'BIGINT', 'DOUBLE', 'DATE', 'TIMESTAMP', 'VARCHAR']",
    "read_json": "",
}
CHANGED = frozenset({
    "time", "uuid", "time with time zone", "date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns",
    "timestamp with time zone",
})  # fmt: skip
"""Types that DuckDB makes of texts: JSON has none of them, and as values `infinity` or `1:00` get another spelling."""
MEMORY = "1GB"
"""Of DuckDB, inside of what the process may take."""
CLOSED = {
    "threads": "1", "memory_limit": MEMORY, "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false", "allow_community_extensions": "false", "allow_unsigned_extensions": "false",
    "temp_directory": "", "python_enable_replacements": "false",
}  # fmt: skip


def open_query(
    query: str,
    tables: Mapping[str, Path],
    data_format: DataFormat,
    roots: Sequence[Path],
    convert: RowConverter | None = None,
) -> OpenedSet:
    """Return the rows of a query. Column names are keys of rows, so `AS` maps a column to a field of a format.

    Raises `InvalidInput` (`E-DATA-UNREADABLE`), `LimitExceeded` (`E-DATA-LIMIT`), `Unavailable` (`E-PACKAGE-MISSING`).
    """
    batches = run_query(query, tables, roots)
    first = next(batches, [])
    if not first:
        raise empty_set_error("The query", "It gives no rows.")
    sample = first[:SAMPLE_ROWS]
    detected = detect(convert.of_sample(sample) if convert else sample, data_format, "The query")
    normalise, done = Normaliser(detected, convert), [0]

    def chunks() -> Iterator[Chunk]:
        for rows in chain([first], batches):
            numbered = ((number, 0, row, row) for number, row in enumerate(rows, done[0] + 1))
            yield from build_chunks(numbered, "query", normalise)
            done[0] += len(rows)

    facts = {"files": len(tables), "query": query}
    return OpenedSet("query", detected.shape.port, detected.format, chunks(), lambda: 0.0, facts)


def run_query(query: str, tables: Mapping[str, Path], roots: Sequence[Path]) -> Iterator[list[JsonObject]]:
    """Rows of the query, 1,000 at a time; null columns are left out."""
    try:
        duckdb = load_object("duckdb")
    except ImportError as error:
        raise Unavailable(
            "The package that runs queries over files is not installed.", why=f"There is no module {error.name}.",
            do="pip install 'trainyard[sql]'", code="E-PACKAGE-MISSING",
        ) from error  # fmt: skip
    try:
        refuse_statements(duckdb, query)
        connection = duckdb.connect(":memory:", config=CLOSED)
        for name, path in tables.items():
            open_inside(path, roots).close()  # a link that leads out of the roots is refused here
            connection.execute(f'CREATE VIEW "{name}" AS SELECT * FROM {read_call(connection, path)}')
        connection.execute("SET allowed_paths = $1", [[str(path.resolve()) for path in tables.values()]])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        reader = connection.sql(query).to_arrow_reader(CHUNK_ROWS)
        refuse_repeated_columns(reader.schema.names)
        texts, restore = text_columns(reader.schema.names), restorers(reader.schema)
        for batch in reader:
            yield [row_values(restore_row(row, restore), texts) for row in batch.to_pylist()]
    except duckdb.OutOfMemoryException as error:
        raise LimitExceeded(
            f"The query needs more than {MEMORY} of memory.", why=first_line(error),
            do="Select fewer columns, or sort and join fewer rows.", code="E-DATA-LIMIT",
        ) from error  # fmt: skip
    except (duckdb.Error, pa.ArrowException) as error:
        raise bad_query(first_line(error)) from error


def read_call(connection: Any, path: Path) -> str:
    """The call that reads a file. Texts of JSON that look like times or UUIDs stay texts: these change as values."""
    location, function = str(path.resolve()).replace("'", "''"), READERS[find_suffix(path.name)]
    options = OPTIONS[function]
    if function == "read_json":
        relation = connection.sql(f"SELECT * FROM {function}('{location}'{options})")
        types = {column: text_type(kind) for column, kind in zip(relation.columns, relation.types, strict=True)}
        if any(map(changes_texts, relation.types)):
            quoted = ", ".join(f"{quote(column)}: {quote(kind)}" for column, kind in types.items())
            options += f", columns={{{quoted}}}"
    return f"{function}('{location}'{options})"


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def changes_texts(kind: Any) -> bool:
    """Whether a type, or one inside of it, spells its values in another way than the file does."""
    if kind.id in CHANGED:
        return True
    return kind.id in ("struct", "map", "list") and any(changes_texts(inner) for _, inner in kind.children)


def text_type(kind: Any) -> str:
    """The SQL type with text in the place of times and UUIDs, which are spelled in other ways once they are values."""
    if kind.id in CHANGED:
        return "VARCHAR"
    if kind.id == "struct":
        fields = (f'"{name.replace(chr(34), chr(34) * 2)}" {text_type(inner)}' for name, inner in kind.children)
        return f"STRUCT({', '.join(fields)})"
    if kind.id == "map":
        key, value = (inner for _, inner in kind.children)
        return f"MAP({text_type(key)}, {text_type(value)})"
    return f"{text_type(kind.children[0][1])}[]" if kind.id == "list" else str(kind)


def refuse_statements(duckdb: Any, query: str) -> None:
    """Raise `InvalidInput` (`E-DATA-UNREADABLE`) for anything but one SELECT."""
    statements = duckdb.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise bad_query(f"It has to be one SELECT; it is {kinds}.")
