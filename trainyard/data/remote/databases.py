"""SQL on a database server by SQLAlchemy: one SELECT in a read-only transaction, its rows as a file of JSON lines.

A chain names a row of the operator's setting `databases`, which names the environment variable with the URL: neither
the address nor the password is part of a chain. The rows are then read in a limited child as any file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainyard.data.formats.json_values import find_repeated, row_values, text_columns
from trainyard.data.remote.fetching import FetchJob, LocalSet
from trainyard.errors import InvalidInput, LimitExceeded, Unavailable, first_line
from trainyard.loading import load_object
from trainyard.settings import Settings
from trainyard.spec.nodes import SourceSet

READ_ONLY: dict[str, tuple[str, ...]] = {
    "sqlite": ("PRAGMA query_only = ON",),
    "postgresql": ("SET TRANSACTION READ ONLY", "SET LOCAL statement_timeout = '1h'"),
}
"""Dialect -> what makes its transaction read-only. Another dialect is refused: it would not be known to be one."""
BESIDES = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts, names and comments, in which a semicolon ends no statement."""
BATCH_ROWS = 1000
MOST_BYTES = 16 << 30


def is_database_set(source: SourceSet) -> bool:
    """Return whether a set is a query on a database that the operator has named."""
    return source.sql is not None and source.sql.database is not None


def fetch_set(job: FetchJob) -> Iterator[LocalSet]:
    """Write the rows of the query into a file. Raises what `write_rows` raises."""
    assert job.source.sql is not None
    assert job.source.sql.database is not None
    folder = job.folder.absolute()
    write_rows(
        job.source.sql.database, job.source.sql.query, folder / "rows.jsonl", job.settings,
        max_rows=job.source.max_rows, report=lambda count: job.report(0.0, f"{count} rows of the query"),
    )  # fmt: skip
    yield LocalSet(folder / "rows.jsonl", (folder,), "query.jsonl", job.selection)


def database_url(name: str, settings: Settings) -> str:
    """Return the URL of a database that the operator has named. Raises `InvalidInput` (`E-DATA-UNREADABLE`)."""
    names = ", ".join(sorted(settings.databases)) or "none"
    if name not in settings.databases:
        raise InvalidInput(
            f"trainyard.toml has no database {name!r}.", why=f"It has {names}.",
            do=f'Add `databases = {{{name} = "VARIABLE"}}` with the environment variable that has the URL.',
            code="E-DATA-UNREADABLE",
        )  # fmt: skip
    if not (url := os.environ.get(settings.databases[name], "")):
        raise InvalidInput(
            f"The environment variable {settings.databases[name]} of the database {name!r} is not set.",
            do="Set it to a URL such as postgresql+psycopg://reader@host/rows, also for the worker.",
            code="E-DATA-UNREADABLE",
        )  # fmt: skip
    return url


def refuse_others(query: str) -> None:
    """Raise `InvalidInput` (`E-DATA-UNREADABLE`) for anything but one statement that begins as one that reads."""
    words = BESIDES.sub(" ", query).strip().rstrip(";").strip()
    if ";" in words or not re.match(r"(?:select|with|values)\b", words, re.IGNORECASE):
        raise bad_query("It has to be one SELECT.")


def write_rows(
    name: str, query: str, path: Path, settings: Settings, *, max_rows: int | None, report: Callable[[int], None]
) -> None:
    """Run the query and write its rows. Raises `InvalidInput`, `LimitExceeded`, `Unavailable`."""
    refuse_others(query)
    alchemy: Any = load_object("sqlalchemy")
    try:
        engine = alchemy.create_engine(database_url(name, settings), poolclass=alchemy.pool.NullPool)
    except alchemy.exc.ArgumentError as error:  # its text may have the URL
        raise InvalidInput(
            f"The URL of the database {name!r} is not valid.", do="Correct it.", code="E-DATA-UNREADABLE"
        ) from error
    except ImportError as error:
        raise Unavailable(
            f"The driver of the database {name!r} is not installed.", why=f"There is no module {error.name}.",
            do=f"pip install {error.name}", code="E-PACKAGE-MISSING",
        ) from error  # fmt: skip
    if engine.dialect.name not in READ_ONLY:
        raise InvalidInput(
            f"The database {name!r} has the dialect {engine.dialect.name}, which is not read.",
            why=f"Read are {', '.join(READ_ONLY)}.", do="Export the rows as a file.", code="E-DATA-UNREADABLE",
        )  # fmt: skip
    try:
        with engine.connect() as connection, path.open("w", encoding="utf-8") as stream:
            for statement in READ_ONLY[engine.dialect.name]:
                connection.exec_driver_sql(statement)
            result = connection.execution_options(stream_results=True, yield_per=BATCH_ROWS).execute(
                alchemy.text(query)
            )
            refuse_repeated_columns(result.keys())
            texts = text_columns(tuple(result.keys()))
            for number, row in enumerate(result.mappings()):
                if number == max_rows:
                    break
                stream.write(json.dumps(row_values(row, texts)) + "\n")
                if number % BATCH_ROWS == 0:
                    report(number)
                    if stream.tell() > MOST_BYTES:
                        raise LimitExceeded(
                            f"The query gives more than {MOST_BYTES:,} bytes.", do="Set max_rows.", code="E-DATA-LIMIT"
                        )
            connection.rollback()
    except alchemy.exc.SQLAlchemyError as error:
        raise bad_query(first_line(getattr(error, "orig", None) or error)) from error
    finally:
        engine.dispose()


def refuse_repeated_columns(names: Iterable[str]) -> None:
    """Raise `InvalidInput` (`E-DATA-UNREADABLE`) for a query with two columns of one name, as joins by `*` have."""
    if (repeated := find_repeated(names)) is not None:
        raise bad_query(f"It gives two columns of the name {repeated[:40]!r}, and a row could have only one of them.")


def bad_query(why: str) -> InvalidInput:
    """Return the error (`E-DATA-UNREADABLE`) of a query that cannot be run."""
    return InvalidInput(
        "The query of the data source cannot be run.", why=why,
        do="Write one SELECT over the tables that `sql` names; `AS` gives a column the name of a field.",
        code="E-DATA-UNREADABLE",
    )  # fmt: skip
