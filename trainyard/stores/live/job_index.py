"""The index of jobs: one SQLite file from which lists and details are answered in a few milliseconds.

A projection: Prefect is the truth. A synchroniser copies what Prefect says (`prefect_api/synchronizing.py`), and an
operation that changes a job writes what Prefect answered, so that a change is seen at once. Deleting the file loses
nothing. One that was deleted or damaged is empty, and is filled again: a thread keeps its connection for reading only
while the file is the one that it opened.

A row is written only if it was read from Prefect later than the stored one: a slow answer does not undo a newer one.
"""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import GROUP_TAG, SWEEP_TAG, find_group, is_named, name_patterns
from trainyard.stores.write_ahead import use_write_ahead_log

VERSION = 2
"""Of the tables: a file of another version is made again."""
WAIT_S = 30.0
"""For another process that writes, some milliseconds as a rule; several that write without a pause can keep one out for
seconds, because SQLite has no queue."""
ALIVE_S = 30.0
"""A synchroniser that has not tried for so long is gone."""
FRESH_S = 3.0
AT_ONCE = 500
"""Values in one statement."""
LAST_CHARACTER = "\U0010ffff"
MOST_MATCHES = 6
"""Jobs of one word that are read: more than an error message names."""
COLUMNS = ("run_id", "id", "name", "tenant", "state", "backend", "stage", "created", "open", "seen", "text")
"""What rows are found by; `open` is 1 for a job that has not ended."""
TABLES = """
create table jobs (run_id text primary key, id text, name text, tenant text, state text, backend text, stage text,
                   created real, open integer, seen real, text text, row blob);
create index by_time on jobs (created, run_id, text);
create index by_tenant on jobs (tenant, created, run_id, text);
create index by_state on jobs (state, created, run_id);
create index by_id on jobs (id);
create index by_name on jobs (name);
create index by_open on jobs (run_id) where open;
create table facts (name text primary key, value real);
"""
CHANGES, SYNCED, TRIED = "changes", "synced_at", "tried_at"
ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELED})
NAMED = "name glob ? or name glob ? or name glob ?"
"""A condition for the patterns of `name_patterns`."""
IN_GROUP = (
    f"(instr(text || char(10), ?) > 0 or (instr(text || char(10), ?) > 0 and instr(text, char(10) || '{GROUP_TAG}') "
    "= 0))"
)
"""A condition for the tag of a group, and for that of a sweep: the tags are lines of `text`."""
TEXTS = ("id", "run_id", "name", "base_model", "message")
"""Fields that a search by text looks into, together with the tags."""

MOST_KEPT = 4
"""Files to which a thread keeps a connection."""

Row = dict[str, Any]
Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class JobQuery:
    """Filter of jobs; "" and None leave a field open."""

    tenant: str = ""
    state: JobState | None = None
    name: str = ""
    backend: str = ""
    stage: str = ""
    text: str = ""
    group: str = ""
    since: datetime | None = None
    """The earliest creation; without a time zone it is local time."""
    limit: int = 50
    after: tuple[float, str] | None = None
    """(created, run id) of the last job of the page before."""

    def accepts(self, row: JsonMapping) -> bool:
        """Whether a row is one of those, wherever it is in their order."""
        exact = {name: getattr(self, name) for name in ("tenant", "backend", "stage") if getattr(self, name)}
        return (
            all(row.get(name) == value for name, value in exact.items())
            and (not self.name or is_named(self.name, str(row.get("name") or "")))
            and self.state in (None, row["state"])
            and self.text.lower() in dump_row(row)
            and self.group in ("", find_group(row.get("tags", ())))
            and (self.since is None or (row["created"] or 0.0) >= self.since.timestamp())
            and (self.after is None or sort_key(row) < self.after)
        )


class JobPage(NamedTuple):
    """Some jobs, the newest first, and the cursor of the next page; "" at the end."""

    rows: list[Row]
    next: str


def build_page(rows: Sequence[Row], limit: int) -> JobPage:
    """Return the first `limit` of some more rows."""
    more = len(rows) > limit
    return JobPage(list(rows[:limit]), write_cursor(sort_key(rows[limit - 1])) if more else "")


def sort_key(row: JsonMapping) -> tuple[float, str]:
    """Where a job is in the order of lists: when it was created, then its run. Neither ever changes."""
    return row["created"] or 0.0, row["run_id"]


def write_cursor(position: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[float, str]:
    """Return the place that a cursor names. Raises `InvalidInput` (`E-PARAMETER`)."""
    try:
        created, run_id = orjson.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
        return float(created), str(run_id)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidInput(
            f"{cursor!r} is not a cursor.",
            do="Give the `next` of the page before, or leave the cursor out.",
            code="E-PARAMETER",
        ) from error


def dump_row(row: JsonMapping) -> str:
    texts = [*(str(row.get(name) or "") for name in TEXTS), *row.get("tags", ())]
    return "\n".join(texts).lower()


class Freshness(NamedTuple):
    """Freshness of the rows of an index."""

    synced_at: float | None
    """When they were last known to be those of Prefect; None before the first time."""
    tried_at: float

    def is_kept(self, now: float) -> bool:
        """Whether a synchroniser keeps the index, so that it may answer in the place of Prefect."""
        return self.synced_at is not None and now - self.tried_at <= ALIVE_S

    def as_of(self, now: float) -> float | None:
        """When the rows were true, if that is more than a moment ago."""
        return self.synced_at if self.synced_at is None or now - self.synced_at > FRESH_S else None


class IndexReader:
    """A connection for reading, closed with its last user."""

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self.stamp, self.connection = stamp, connect(path)

    def __del__(self) -> None:
        if hasattr(self, "connection"):  # it could be opened
            self.connection.close()


class IndexReaders(threading.local):
    """The connections of a thread, by file: opening one takes longer than a query."""

    def __init__(self) -> None:
        self.readers: dict[Path, IndexReader] = {}

    def connection(self, path: Path) -> sqlite3.Connection:
        """Raises `FileNotFoundError`, and `sqlite3.DatabaseError` as `connect` does."""
        stamp = read_stamp(path)
        reader = self.readers.get(path)
        if reader is None or reader.stamp != stamp:
            self.drop(path)
            while len(self.readers) >= MOST_KEPT:
                self.drop(next(iter(self.readers)))
            reader = self.readers[path] = IndexReader(path, stamp)
        return reader.connection

    def drop(self, path: Path) -> None:
        self.readers.pop(path, None)


def read_stamp(path: Path) -> Stamp:
    """Return what differs for another file, for one that something else has written over, and in a forked process.

    In SQLite's write-ahead mode the file itself changes only when its log is copied into it.
    """
    status = os.stat(path)
    return os.getpid(), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


READERS = IndexReaders()


class JobIndex:
    """The index of a home."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # reading

    def synced_at(self) -> float | None:
        """When its rows were last known to be those of Prefect; None before the first time."""
        return self.freshness().synced_at

    def is_kept(self, now: float) -> bool:
        """Whether a synchroniser keeps it, so that it may answer in the place of Prefect."""
        return self.freshness().is_kept(now)

    def freshness(self) -> Freshness:
        """Return how new its rows are."""
        facts = self.facts()
        return Freshness(facts.get(SYNCED), facts.get(TRIED, 0.0))

    def changes(self) -> int:
        """Return how often a row has changed: equal numbers mean equal rows."""
        return int(self.facts().get(CHANGES, 0))

    def facts(self) -> dict[str, float]:
        return dict(self.query("select name, value from facts"))

    def select(self, query: JobQuery) -> JobPage:
        """Return the jobs of a query, the newest first."""
        where, values = conditions(query)
        text = f"select row from jobs {where} order by created desc, run_id desc limit ?"
        return build_page([read_row(blob) for (blob,) in self.query(text, *values, query.limit + 1)], query.limit)

    def count_by_state(self) -> dict[str, int]:
        """Return how many jobs are in each state that any is in."""
        return dict(self.query("select state, count(*) from jobs group by state"))

    def oldest_created(self, state: JobState) -> float | None:
        """When the oldest job in a state was created (seconds of the epoch); None where none is in it."""
        rows = self.query("select min(created) from jobs where state = ? and created > 0", state)
        return rows[0][0] if rows else None

    def find(self, word: str, tenant: str = "") -> list[Row]:
        """Return the jobs that a word names: an id, the beginning of one, a name, or else the beginning of a name.

        At most `MOST_MATCHES`.
        """
        if not word:
            return []
        first, last = word.lower(), word.lower() + LAST_CHARACTER
        text = (
            "select row from jobs where run_id in (select run_id from jobs where run_id between ? and ? union "
            f"select run_id from jobs where id between ? and ? union select run_id from jobs where {NAMED}) and (? = "
            "'' or tenant = ?) order by created desc, run_id desc limit ?"
        )
        rows = self.query(text, first, last, first, last, *name_patterns(word), tenant, tenant, MOST_MATCHES)
        if not rows:
            text = (
                "select row from jobs where name between ? and ? and (? = '' or tenant = ?) order by created desc, "
                "run_id desc limit ?"
            )
            rows = self.query(text, word, word + LAST_CHARACTER, tenant, tenant, MOST_MATCHES)
        return [read_row(blob) for (blob,) in rows]

    def read_rows(self, run_ids: Iterable[str]) -> dict[str, Row]:
        """The rows of these runs that are there."""
        ids, rows = sorted(run_ids), dict[str, Row]()
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            text = f"select run_id, row from jobs where run_id in ({', '.join('?' * len(some))})"
            rows |= {run_id: read_row(blob) for run_id, blob in self.query(text, *some)}
        return rows

    def runs(self) -> set[str]:
        return {run_id for (run_id,) in self.query("select run_id from jobs")}

    def open_runs(self) -> set[str]:
        """The runs that had not ended when they were last seen."""
        return {run_id for (run_id,) in self.query("select run_id from jobs where open")}

    def count(self) -> int:
        return sum(number for (number,) in self.query("select count(*) from jobs"))

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none without a file that can be read, which a synchroniser makes again."""
        try:
            return READERS.connection(self.path).execute(text, values).fetchall()
        except FileNotFoundError:
            return []
        except sqlite3.DatabaseError:
            READERS.drop(self.path)
            return []

    # writing

    def put(self, rows: Iterable[Row], seen: float) -> int:
        """Write Prefect's answer of a given time; return the number of changed rows."""
        with self.writing() as database:
            return sum(put_row(database, row, seen) for row in rows)

    def remove(self, run_ids: Iterable[str], seen: float) -> None:
        """Remove the rows of runs that Prefect did not have at a time."""
        with self.writing() as database:
            for run_id in run_ids:
                database.execute("delete from jobs where run_id = ? and seen < ?", (run_id, seen))
            count_change(database)

    def note_try(self, now: float) -> None:
        """Record that a synchroniser is about to ask Prefect."""
        self.note(TRIED, now)

    def note_success(self, at: float) -> None:
        """Record that the rows are those that Prefect had at a time."""
        self.note(SYNCED, at)

    def note(self, name: str, value: float) -> None:
        with self.writing() as database:
            database.execute("insert or replace into facts values (?, ?)", (name, value))

    def keep_open(self) -> sqlite3.Connection:
        """Return a connection that keeps the file's log open; its caller closes it."""
        database = connect(self.path, make=True)
        database.execute("select count(*) from facts").fetchone()
        return database

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; a file that is damaged or of another version is removed, and made again by the next one.

        Raises `sqlite3.Error` if nothing could be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(connect(self.path, make=True)) as database, database:
                database.execute("begin immediate")
                yield database
        except sqlite3.OperationalError:
            raise  # locked for long, or a full disk: the file is as good as before
        except sqlite3.DatabaseError:
            remove_database(self.path)
            raise


def connect(path: Path, *, make: bool = False) -> sqlite3.Connection:
    """Open the file. Raises `sqlite3.DatabaseError` for one that is not ours, or of another version."""
    mode = "rwc" if make else "rw"
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        timeout=WAIT_S,
        isolation_level=None,
        uri=True,
        check_same_thread=False,  # a thread that has ended leaves its own to be closed by another
    )
    try:
        version = database.execute("pragma user_version").fetchone()[0]
        if version == 0 and make:
            create_tables(database)
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"The index has version {version}.")
        database.execute("pragma synchronous = normal")
    except sqlite3.Error:
        database.close()
        raise
    return database


def create_tables(database: sqlite3.Connection) -> None:
    use_write_ahead_log(database, WAIT_S)
    database.execute("begin immediate")
    if database.execute("pragma user_version").fetchone()[0] == 0:  # another process may have been faster
        for statement in filter(str.strip, TABLES.split(";")):
            database.execute(statement)
        database.execute(f"pragma user_version = {VERSION}")
    database.execute("commit")


def remove_database(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def put_row(database: sqlite3.Connection, row: Row, seen: float) -> bool:
    """Write one row unless a later one is there; return whether it changed."""
    blob = orjson.dumps(row)
    there = database.execute("select seen, row from jobs where run_id = ?", (row["run_id"],)).fetchone()
    if there is not None and there[0] > seen:
        return False
    if there is not None and there[1] == blob:
        database.execute("update jobs set seen = ? where run_id = ?", (seen, row["run_id"]))
        return False
    values: Row = {name: row.get(name) or "" for name in COLUMNS}
    is_open = JobState(row["state"]) not in ENDED
    values |= {"created": row["created"] or 0.0, "open": int(is_open), "seen": seen, "text": dump_row(row)}
    text = f"insert or replace into jobs values ({', '.join('?' * (len(COLUMNS) + 1))})"
    database.execute(text, (*(values[name] for name in COLUMNS), blob))
    count_change(database)
    return True


def count_change(database: sqlite3.Connection) -> None:
    database.execute("insert into facts values (?, 1) on conflict (name) do update set value = value + 1", (CHANGES,))


def conditions(query: JobQuery) -> tuple[str, list[object]]:
    """Return the `where` of a query and its values."""
    names = ("tenant", "state", "backend", "stage")
    exact = [(f"{name} = ?", getattr(query, name)) for name in names if getattr(query, name)]
    if query.text:
        exact.append(("instr(text, ?) > 0", query.text.lower()))
    parts, values = [text for text, _ in exact], [value for _, value in exact]
    if query.group:
        parts.append(IN_GROUP)
        values += [f"\n{prefix}{query.group.lower()}\n" for prefix in (GROUP_TAG, SWEEP_TAG)]
    if query.name:
        parts.append(f"({NAMED})")
        values += name_patterns(query.name)
    if query.since is not None:
        parts.append("created >= ?")
        values.append(query.since.timestamp())
    if query.after is not None:
        parts.append("(created, run_id) < (?, ?)")
        values += query.after
    return (f"where {' and '.join(parts)}" if parts else ""), values


def read_row(blob: bytes) -> Row:
    row: Row = orjson.loads(blob)
    return row | {"state": JobState(row["state"])}
