"""The same rows in every type of file, as a data set of the Hub and from SQL: the same rows are read."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from trainyard.data.readers.rowfiles import row_set
from trainyard.data.readers.streams import Limits
from trainyard.data.remote.databases import write_rows
from trainyard.data.remote.queries import open_query
from trainyard.settings import load_settings
from trainyard.spec.axes.data import DataFormat

Records = list[dict[str, Any]]
JSON_TYPES = (list, dict)

SPECIAL = (
    '[1, 2]', '{"a": 1}', '[{"name": "Ann"}]', "a, b; c\td", 'say "hi"', "C:\\new", "line one\nline two", "ends\r\n",
    "2026-01-01", "2026-01-01 10:00", "12:00", "6F1E6A3C-1B5E-4D43-9D8E-000000000ABC", "# note", "null", "é – €", " x",
    "'", "007", "1.50", "true",
)  # fmt: skip
letters = st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t")
texts = st.one_of(
    st.sampled_from(SPECIAL), st.text(letters, min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
)
turn_weights = st.fixed_dictionaries({}, optional={"weight": st.sampled_from([0, 1]), "name": texts})
tools = st.just([{"type": "function", "function": {"name": "lamp", "parameters": {"type": "object", "properties": {
    "pier": {"type": "string"}}}}}])  # fmt: skip
arguments = st.fixed_dictionaries({"pier": texts}, optional={"count": st.integers(-99, 99)}).map(
    lambda values: dict(sorted(values.items(), reverse=True))
)
"""One order of keys: Arrow's structs have the order of their column, which a row cannot change."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@st.composite
def chats(draw: st.DrawFn, calls: st.SearchStrategy[Any]) -> dict[str, Any]:
    called = draw(calls)
    call = {"id": "c1", "type": "function", "function": {"name": "lamp", "arguments": called}}
    turns = [user(draw(texts)), {"role": "assistant", "content": draw(texts), **draw(turn_weights)}]
    if draw(st.booleans()):
        turns += [user(draw(texts)), {"role": "assistant", "content": "", "tool_calls": [call]},
                  {"role": "tool", "content": draw(texts), "tool_call_id": "c1"}]  # fmt: skip
    turns += [user("Well?"), {"role": "assistant", "content": draw(texts), "reasoning_content": draw(texts)}]
    return {"messages": turns, **draw(st.fixed_dictionaries({}, optional={"tools": tools, "system": texts}))}


def sharegpt(text: str, answer: str) -> list[dict[str, Any]]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]


history = st.lists(st.tuples(texts, texts).map(list), max_size=2)
answers = texts | texts.map(lambda text: [{"role": "assistant", "content": text}])
SHAPES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "objects": chats(arguments),
    "chat": chats(arguments.map(json.dumps)),
    "sharegpt": st.builds(lambda a, b: {"conversations": sharegpt(a, b)}, texts, texts),
    "alpaca": st.fixed_dictionaries(
        {"instruction": texts, "output": texts}, optional={"input": texts, "system": texts, "history": history}
    ),
    "pair": st.fixed_dictionaries(
        {"prompt": texts, "response": texts},
        optional={"context": texts, "history": history, "steps": st.lists(texts, max_size=2), "system": texts},
    ),
    "turns": st.fixed_dictionaries({"prompt": texts.map(lambda text: [user(text)]), "completion": answers}),
    "preference": st.fixed_dictionaries(
        {"question": texts, "chosen": answers, "rejected": answers}, optional={"system": texts, "input": texts}
    ),
    "labelled": st.fixed_dictionaries({"prompt": texts, "completion": texts, "label": st.booleans()}),
    "prompts": st.fixed_dictionaries({"prompt": texts, "solution": texts}, optional={"system": texts}),
    "text": st.fixed_dictionaries({"text": texts}, optional={"source": texts}),
}
sets = st.sampled_from(sorted(SHAPES)).flatmap(lambda name: st.lists(SHAPES[name], min_size=1, max_size=4))


# Writers


def list_columns(records: Records) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record))


def uniform(records: Records) -> Records:
    """Rows whose columns have one type each: Arrow has no column of texts and lists, so these become JSON text."""
    names = list_columns(records)
    kinds = {name: {type(record[name]) for record in records if name in record} for name in names}
    nested = {name for name in names if len(kinds[name]) > 1 and kinds[name] & set(JSON_TYPES)}
    return [record for record in records if not nested & record.keys()]


def cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, JSON_TYPES) else value


def write_delimited(records: Records, delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(list_columns(records))
    writer.writerows([cell(record.get(name, "")) for name in list_columns(records)] for record in records)
    return out.getvalue().encode()


def make_table(records: Records, *, views: bool = False, floats: bool = False) -> pa.Table:
    whole = [{name: record.get(name) for name in list_columns(records)} for record in records]
    if floats:
        whole = [
            {key: float(value) if isinstance(value, bool) else value for key, value in row.items()} for row in whole
        ]
    table = pa.Table.from_pylist(whole)
    if views:
        kinds = [pa.string_view() if kind == pa.string() else kind for kind in table.schema.types]
        table = table.cast(pa.schema(list(zip(table.schema.names, kinds, strict=True))))
    return table


def parquet_bytes(table: pa.Table) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def arrow_bytes(table: pa.Table, opener: Callable[..., Any]) -> bytes:
    out = io.BytesIO()
    with opener(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def dictionaries(table: pa.Table) -> pa.Table:
    columns = [column.dictionary_encode() if column.type == pa.string() else column for column in table.columns]
    return pa.table(columns, names=table.column_names)


def large(table: pa.Table) -> pa.Table:
    kinds = [pa.large_string() if kind == pa.string() else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.schema.names, kinds, strict=True))))


TEXT_FILES: dict[str, Callable[[Records], bytes]] = {
    "rows.jsonl": lambda records: "".join(json.dumps(record) + "\n" for record in records).encode(),
    "rows.json": lambda records: json.dumps(records, indent=1, ensure_ascii=False).encode(),
    "rows.csv": lambda records: write_delimited(records, ","),
    "semicolons.csv": lambda records: write_delimited(records, ";"),
    "rows.tsv": lambda records: write_delimited(records, "\t"),
}
COLUMN_FILES: dict[str, Callable[[Records], bytes]] = {
    "rows.parquet": lambda records: parquet_bytes(make_table(records)),
    "floats.parquet": lambda records: parquet_bytes(make_table(records, floats=True)),
    "views.parquet": lambda records: parquet_bytes(make_table(records, views=True)),
    "dictionaries.parquet": lambda records: parquet_bytes(dictionaries(make_table(records))),
    "large.parquet": lambda records: parquet_bytes(large(make_table(records))),
    "rows.arrow": lambda records: arrow_bytes(make_table(records), ipc.new_file),
    "stream.arrow": lambda records: arrow_bytes(large(make_table(records)), ipc.new_stream),
}


# Readers


def list_rows(opened: Any) -> tuple[list[Any], int]:
    """The rows without where they were read, and how many were bad."""
    chunks = list(opened.chunks)
    rows = [row for chunk in chunks for row in chunk.rows]
    for row in rows:
        row.source = row.doc_id = ""
    return rows, sum(len(chunk.bad) for chunk in chunks)


def read_file(folder: Path, name: str, content: bytes) -> tuple[list[Any], int]:
    path = folder / name
    path.write_bytes(content)
    return list_rows(row_set([path], DataFormat.AUTO, name, [folder], Limits()))


def read_sqlite(folder: Path, records: Records, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int]:
    names, database_path = list_columns(records), folder / "rows.db"
    with sqlite3.connect(database_path) as database:
        database.execute(f"CREATE TABLE rows ({', '.join(names)})")
        values = ([cell(record.get(name)) for name in names] for record in records)
        database.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(names))})", values)
    database.close()
    monkeypatch.setenv("SAME_ROWS_URL", f"sqlite:///{database_path}")
    options = {"max_rows": None, "report": lambda number: None}
    write_rows(
        "rows", "SELECT * FROM rows", folder / "sqlite.jsonl", load_settings(databases={"rows": "SAME_ROWS_URL"}),
        **options,
    )  # fmt: skip
    database_path.unlink()
    return read_file(folder, "again.jsonl", (folder / "sqlite.jsonl").read_bytes())


def read_duckdb(folder: Path, name: str) -> tuple[list[Any], int]:
    return list_rows(open_query("SELECT * FROM t", {"t": folder / name}, DataFormat.AUTO, [folder]))


def differences(records: Records, monkeypatch: pytest.MonkeyPatch, *, queries: bool) -> Iterable[str]:
    """Names of the types of files that do not give the rows of JSON Lines."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        expected = read_file(folder, "rows.jsonl", TEXT_FILES["rows.jsonl"](records))
        assert len(expected[0]) + expected[1] == len(records)
        for name, write in itertools.islice(TEXT_FILES.items(), 1, None):
            if read_file(folder, name, write(records)) != expected:
                yield name
        if read_sqlite(folder, records, monkeypatch) != expected:
            yield "sqlite"
        columns = uniform(records)
        if not columns:
            return
        expected = read_file(folder, "rows.jsonl", TEXT_FILES["rows.jsonl"](columns))
        for name, write in COLUMN_FILES.items():
            if read_file(folder, name, write(columns)) != expected:
                yield name
        if queries:
            yield from (name for name in ("rows.parquet", "rows.jsonl") if read_duckdb(folder, name) != expected)


def check(records: Records, *, queries: bool) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert list(differences(records, monkeypatch, queries=queries)) == [], json.dumps(records)


RELAXED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@settings(max_examples=25, **RELAXED)
@given(sets)
def test_every_type_of_file_gives_the_same_rows(records: Records) -> None:
    check(records, queries=False)


@settings(max_examples=5, **RELAXED)
@example([{"prompt": "INFINITY", "completion": "infinity"}, {"prompt": "10:00", "completion": "2024-01-05"}])
@given(sets)
def test_queries_give_the_same_rows(records: Records) -> None:
    check(records, queries=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=2000, **RELAXED)
@given(sets)
def test_two_thousand_sets_give_the_same_rows_in_every_type_of_file(records: Records) -> None:
    check(records, queries=True)
