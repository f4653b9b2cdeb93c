"""SQL as a source of rows: files by DuckDB in a reading process, a database by SQLAlchemy; neither writes or leaks."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unit.data.reading import Result, json_lines, read_all, settings_for
from trainyard.errors import InvalidInput, Refused, TrainyardError
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DataSourceConfig


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    parquet.write_table(pa.table({"q": ["Why?", "Who?", "When?"], "id": [1, 2, 3]}), tmp_path / "q.parquet")
    (tmp_path / "a.jsonl").write_text(json_lines({"id": 1, "a": "Because."}, {"id": 3, "a": "Now."}))
    (tmp_path / "secret.csv").write_text("a\nnobody reads this\n")
    return tmp_path


JOINED = "SELECT q.q AS prompt, a.a AS completion FROM q JOIN a USING (id) ORDER BY id"


def ask(rows: Path, query: str, number: int = 0, **fields: Any) -> Result:
    sql = {"query": query, "files": {"q": "q.parquet", "a": "a.jsonl"}}
    (result,) = read_all(rows / f"out{number}", settings_for(rows), sql=sql, **fields).values()
    return result


def test_a_query_joins_files_and_names_fields(rows: Path) -> None:
    result = ask(rows, JOINED)
    assert result.port is Port.SFT
    assert [row.messages[0].content for row in result.rows] == ["Why?", "When?"]
    assert (result.facts["query"], result.rows[1].source) == (JOINED, "query:2")
    assert len(ask(rows, JOINED, 1, max_rows=1).rows) == 1


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("DROP VIEW q", "It has to be one SELECT; it is DROP"),
        ("SELECT 1; SELECT 2", "It has to be one SELECT; it is SELECT, SELECT"),
        ("COPY q TO '{folder}/stolen.csv'", "it is COPY"),
        ("ATTACH '{folder}/x.db'", "it is ATTACH"),
        ("INSTALL httpfs", "It has to be one SELECT"),
        ("SET enable_external_access = true", "It has to be one SELECT"),
        ("SELECT * FROM read_csv('{folder}/secret.csv')", "secret.csv"),
        ("SELECT * FROM '{folder}/secret.csv'", "secret.csv"),
        ("SELECT * FROM read_text('/etc/passwd')", "/etc/passwd"),
        ("SELECT * FROM glob('/etc/*')", "disabled"),
        ("SELECT * FROM read_csv('http://169.254.169.254/latest')", "169.254.169.254"),
        ("SELECT nothing FROM q", "nothing"),
        ("SELEC", "syntax error"),
        ("SELECT * FROM q JOIN a ON q.id = a.id", "It gives two columns of the name 'id'"),
        ("SELECT q AS prompt, 'x' AS completion, 'y' AS completion FROM q", "two columns of the name 'completion'"),
    ],
)
def test_a_query_reads_its_files_and_nothing_else(rows: Path, query: str, why: str) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-UNREADABLE") as raised:
        ask(rows, query.replace("{folder}", str(rows)))
    assert why in str(raised.value)
    assert not (rows / "stolen.csv").exists()


def test_a_file_outside_of_the_roots_is_refused(rows: Path) -> None:
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        read_all(rows / "out", settings_for(rows), sql={"query": "SELECT 1", "files": {"t": "/etc/hosts.csv"}})
    with pytest.raises(ValueError, match=r"a query reads \.parquet"):
        DataSourceConfig(sql={"query": "SELECT 1", "files": {"t": "/etc/passwd"}})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either files or a database"):
        DataSourceConfig(sql={"query": "SELECT 1"})  # type: ignore[arg-type]


def test_a_query_that_needs_too_much_memory_ends_in_a_code(rows: Path) -> None:
    with pytest.raises(TrainyardError, match="E-DATA-LIMIT"):
        ask(rows, "SELECT string_agg(repeat('x', 1000), '') AS text FROM range(100_000_000)")


def test_a_database_is_read_in_a_transaction_that_cannot_write(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database_path = rows / "rows.db"
    with sqlite3.connect(database_path) as database:
        database.execute("CREATE TABLE faq (question TEXT, answer TEXT, rank INTEGER)")
        database.executemany("INSERT INTO faq VALUES (?, ?, ?)", [("Why?", "Because; yes.", 1), ("Who?", None, 2)])
    database.close()
    monkeypatch.setenv("ROWS_URL", f"sqlite:///{database_path}")

    def ask_database(query: str, number: int, name: str = "faq") -> dict[Port, Result]:
        settings = settings_for(rows, databases={"faq": "ROWS_URL", "unset": "NO_SUCH_URL", "odd": "ODD_URL"})
        sql = {"query": query, "database": name}
        return read_all(rows / f"db{number}", settings, sql=sql, max_bad_fraction=0.5)

    query = "SELECT question AS prompt, answer AS completion FROM faq WHERE question <> ';' ORDER BY rank;"
    result = ask_database(query, 0)[Port.SFT]
    assert [row.messages[1].content for row in result.rows] == ["Because; yes."]
    assert result.reasons == ["missing_fields"]
    monkeypatch.setenv("ODD_URL", "mysql+odd://user:hunter2@host/rows")
    for number, (wrong, name, why) in enumerate(
        [
            ("DELETE FROM faq", "faq", "It has to be one SELECT"),
            ("SELECT 1; DROP TABLE faq", "faq", "It has to be one SELECT"),
            ("WITH x AS (SELECT 1) DELETE FROM faq", "faq", "attempt to write a readonly database"),
            ("SELECT * FROM absent", "faq", "no such table"),
            ("SELECT answer AS text, question AS text FROM faq", "faq", "two columns of the name 'text'"),
            ("SELECT 1", "other", "It has faq, odd, unset."),
            ("SELECT 1", "unset", "NO_SUCH_URL"),
            ("SELECT 1", "odd", "The URL of the database 'odd' is not valid."),
        ],
        start=1,
    ):
        with pytest.raises(InvalidInput, match="E-DATA-UNREADABLE") as raised:
            ask_database(wrong, number, name)
        assert why in str(raised.value)
        assert "hunter2" not in str(raised.value)
    with sqlite3.connect(database_path) as database:
        assert database.execute("SELECT count(*) FROM faq").fetchone() == (2,)
    database.close()
