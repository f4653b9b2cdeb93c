"""The curve of a training at every resolution: one SQLite file per training, fed from its events.

Level 0 has each step; level k has one row for 8^k steps with count, smallest, largest, sum and last value of each
metric, made by one grouping statement from the level below. A query takes the finest level that does not have many
more rows than were requested and groups its rows once more. A restart removes the steps beyond its checkpoint, as
`stores/metrics.read_curve` does, and the rows above them are made again.

A projection of the training's events: the position in that file is stored in the same transaction as its steps, so a
process that is killed, and another one that reads too, neither lose nor repeat a step. Deleting the file loses nothing.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import NoneType
from typing import Any, NamedTuple

import orjson

from trainyard.json_types import JsonObject
from trainyard.stores.metrics import MEASURED, Event, Point, TrainingProgress, number
from trainyard.stores.write_ahead import use_write_ahead_log

VERSION = 3
WAIT_S = 30.0
FACTOR = 8
"""Rows of a level that become one row of the next."""
MAX_LEVELS = 17
MOST_STEPS = FACTOR**MAX_LEVELS
"""A larger number is not a valid step of a trainer (2^51)."""
PARTS = ("n", "low", "high", "sum", "last")
SUMMED = [f"{name}_{part}" for name in MEASURED for part in PARTS]
POINTS = f"create table points (step integer primary key, time real, {', '.join(f'{name} real' for name in MEASURED)})"
LEVEL = "create table level_{level} (bucket integer primary key, step integer, time real, {columns})"
PACE_STEPS = 200
"""The newest steps, over which a pace is measured: it follows a training that slows down."""
PROGRESS = tuple(TrainingProgress.model_fields)
TOTALS = tuple(name for name in PROGRESS if name.startswith("total"))


class StepPace(NamedTuple):
    """Speed of a training since its last start: its newest step, when that was done, and seconds a step."""

    step: int
    time: float
    seconds_per_step: float


class Position(NamedTuple):
    """Read position in the events of a training."""

    offset: int = 0
    inode: int = 0


Columns = dict[str, tuple[float | None, ...]]
"""Metric -> its values, one for each point; without metrics that no step has."""


@dataclass(frozen=True)
class Resolution:
    """A curve, or one whose points are made of several steps each."""

    steps_per_point: int
    points: tuple[Point, ...]
    """Each step; or of several steps the last one's number and time, and the mean of each metric."""
    low: Columns
    high: Columns
    last: Columns
    """Of the same steps the smallest, largest and last values; empty where each point is one step."""


class CurveStore:
    """The curve of one training since the run began that it is shown for. Threads take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = Lock()
        self.connection: tuple[int, sqlite3.Connection] | None = None
        """The file's inode, and what has it open: closing it each time would write the whole log back."""

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The connection; a file that is missing, damaged or of another version is made again."""
        with self.lock:
            there = self.path.stat().st_ino if self.path.exists() else 0
            if self.connection is None or self.connection[0] != there:
                self.close()
                database = self.connect()
                self.connection = (self.path.stat().st_ino, database)
            yield self.connection[1]

    def connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return connect(self.path)
        except sqlite3.OperationalError:
            raise  # locked for long, or a full disk: the file is as good as before
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            return connect(self.path)

    def close(self) -> None:
        if self.connection is not None:
            self.connection[1].close()
            self.connection = None

    # writing

    def position(self) -> Position:
        with self.opened() as database:
            return read_position(database)

    def extend(self, events: Iterable[Event], before: Position, after: Position) -> bool:
        """Add the events between two positions; False if another process has added them meanwhile."""
        with self.opened() as database, database:
            database.execute("begin immediate")
            if read_position(database) != before:
                return False
            Extension(database).add(events)
            write_facts(database, offset=after.offset, inode=after.inode)
        return True

    def reset(self) -> None:
        """Forget everything: the events are those of another file."""
        with self.opened() as database, database:
            database.execute("begin immediate")
            cut(database, None)
            write_facts(database, offset=0, inode=0, progress={})

    # reading

    def progress(self) -> TrainingProgress:
        with self.opened() as database:
            return TrainingProgress(**read_facts(database).get("progress", {}))

    def pace(self) -> StepPace | None:
        """Return the mean pace of the newest steps since the last start; None before the second of them."""
        text = "select step, time from points where time >= ? order by step desc limit ?"
        with self.opened() as database:
            steps = database.execute(text, (read_facts(database).get("begun", 0.0), PACE_STEPS)).fetchall()
        if len(steps) < 2 or steps[0][1] <= steps[-1][1]:
            return None
        (last, now), (first, then) = steps[0], steps[-1]
        return StepPace(last, now, (now - then) / (last - first))

    def read(
        self, max_points: int | None = None, since_step: int | None = None, until_step: int | None = None
    ) -> Resolution:
        """Return the curve from one step to another, in at most so many points."""
        since = -MOST_STEPS if since_step is None else min(max(since_step, -MOST_STEPS), MOST_STEPS)
        until = MOST_STEPS if until_step is None else max(min(until_step, MOST_STEPS), -MOST_STEPS)
        with self.opened() as database:
            level, group = choose(database, max_points, since, until) if max_points else (0, 1)
            if level == 0 and group == 1:
                text = "select * from points where step between ? and ? order by step"
                points = tuple(map(build_point, database.execute(text, (since, until))))
                return Resolution(1, points, {}, {}, {})
            metrics, steps = read_facts(database).get("present", []), FACTOR**level * group
            text = f"{rollup(level, group, metrics)} order by bucket"
            rows = database.execute(text, {"from": since // steps, "to": until // steps}).fetchall()
        return summarize_rows(steps, rows, metrics)


@lru_cache(maxsize=64)
def open_curve(path: Path) -> CurveStore:
    """Return the curve of a file, open in this process as long as it is among the last that were read."""
    return CurveStore(path)


def curve_path(folder: Path, work: Path, since: float) -> Path:
    """Where the curve of a work folder is, of the events since a time."""
    name = hashlib.sha256(f"{work.absolute()}\n{since!r}".encode()).hexdigest()[:24]
    return folder / f"{name}.sqlite3"


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        version = database.execute("pragma user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"The curve has version {version}.")
        database.execute("pragma synchronous = normal")
        if version == 0:
            create_tables(database)
    except sqlite3.Error:
        database.close()
        raise
    return database


def create_tables(database: sqlite3.Connection) -> None:
    use_write_ahead_log(database, WAIT_S)
    database.execute("begin immediate")
    if database.execute("pragma user_version").fetchone()[0] == 0:
        database.execute("create table facts (name text primary key, value blob)")
        database.execute(POINTS)
        for level in range(1, MAX_LEVELS + 1):
            columns = ", ".join(f"{name} real" for name in SUMMED)
            database.execute(LEVEL.format(level=level, columns=columns))
        database.execute(f"pragma user_version = {VERSION}")
    database.execute("commit")


def read_facts(database: sqlite3.Connection) -> JsonObject:
    return {name: orjson.loads(value) for name, value in database.execute("select name, value from facts")}


def write_facts(database: sqlite3.Connection, **facts: object) -> None:
    rows = [(name, orjson.dumps(value)) for name, value in facts.items()]
    database.executemany("insert or replace into facts values (?, ?)", rows)


def read_position(database: sqlite3.Connection) -> Position:
    facts = read_facts(database)
    return Position(facts.get("offset", 0), facts.get("inode", 0))


class Extension:
    """Events on their way into the tables: collected, written at once, and summed up from the first changed step.

    Values are looked at column by column: a million steps are some seconds of this loop.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.points: dict[int, tuple[object, ...]] = {}
        facts = read_facts(database)
        self.progress: dict[str, float] = facts.get("progress", {})
        self.present: set[str] = set(facts.get("present", []))

    def add(self, events: Iterable[Event]) -> None:
        reports: list[Event] = []
        for event in events:
            kind = event["event"]
            if kind == "progress":
                reports.append(event)
                step = event.get("step")
                if isinstance(step, int) and abs(step) < MOST_STEPS:
                    get = event.get
                    self.points[step] = (step, get("time"), *[get(name) for name in MEASURED])
            elif kind == "begin":
                self.restart(event.get("restarted_from"))
                reports.append({name: event[name] for name in TOTALS if name in event})
                write_facts(self.database, begun=number(event.get("time")) or 0.0)
        self.flush()
        self.note_progress(reports)

    def note_progress(self, reports: Sequence[Event]) -> None:
        """Record the newest number of each word of the progress."""
        for name in set[str]().union(*reports).intersection(PROGRESS):
            newest = (value for event in reversed(reports) if isinstance(value := event.get(name), int | float))
            if (value := next(newest, None)) is not None:
                self.progress[name] = value
        write_facts(self.database, progress=self.progress)

    def restart(self, checkpoint: object) -> None:
        """Forget the steps beyond a checkpoint; all of them without one."""
        self.flush()
        step = checkpoint.get("step") if isinstance(checkpoint, dict) else None
        cut(self.database, step if isinstance(step, int) else None)

    def flush(self) -> None:
        """Write the collected points. Metrics without points cost nothing."""
        if not self.points:
            return
        steps, times, *columns = zip(*self.points.values(), strict=True)
        times = tuple(time or 0.0 for time in numbers(times))
        series = {
            name: values
            for name, column in zip(MEASURED, columns, strict=True)
            if has_number(values := numbers(column))
        }
        self.present |= series.keys()
        write_facts(self.database, present=[name for name in MEASURED if name in self.present])
        names = ", ".join(("step", "time", *series))
        marks = ", ".join("?" * (len(series) + 2))
        rows = zip(steps, times, *series.values(), strict=True)
        self.database.executemany(f"insert or replace into points ({names}) values ({marks})", rows)
        update_levels(self.database, min(self.points))
        self.points = {}


def numbers(column: Sequence[Any]) -> Sequence[float | None]:
    """Return the numbers of a column, None for anything else."""
    return column if set(map(type, column)) <= {float, NoneType} else tuple(map(number, column))


def has_number(column: Sequence[float | None]) -> bool:
    return set(map(type, column)) != {NoneType}


def cut(database: sqlite3.Connection, step: int | None) -> None:
    """Remove the points beyond a step, or all points."""
    if step is None:
        for table in ("points", *(f"level_{level}" for level in range(1, MAX_LEVELS + 1))):
            database.execute(f"delete from {table}")
        return
    database.execute("delete from points where step > ?", (step,))
    update_levels(database, step)


def update_levels(database: sqlite3.Connection, first: int) -> None:
    """Make the rows of every level again that a change of the steps from `first` on concerns."""
    metrics = read_facts(database).get("present", [])
    columns = ", ".join(("bucket", "step", "time", *(f"{name}_{part}" for name in metrics for part in PARTS)))
    for level in range(1, MAX_LEVELS + 1):
        start = first // FACTOR**level
        database.execute(f"delete from level_{level} where bucket >= ?", (start,))
        text = f"insert into level_{level} ({columns}) {rollup(level - 1, FACTOR, metrics)}"
        database.execute(text, {"from": start, "to": MOST_STEPS})


def rollup(level: int, group: int, metrics: Sequence[str]) -> str:
    """The statement that makes one row of `group` neighbouring rows of a level, from the row `:from` to `:to`."""
    key, table = name_level(level)
    parts = [f"max({key}) / {group} as bucket", "max(step) as step", "max(time) as time"]
    for name in metrics:
        if level == 0:
            sources = dict.fromkeys(PARTS, name)
            parts.append(f"count({name}) as {name}_n")
        else:
            sources = {part: f"{name}_{part}" for part in PARTS}
            parts.append(f"sum({name}_n) as {name}_n")
        newest = f"(select b.{sources['last']} from {table} b where b.{key} between a.{key} / {group} * {group} and "
        newest += f"a.{key} / {group} * {group} + {group - 1} and b.{sources['last']} is not null"
        parts += [f"min({sources['low']}) as {name}_low", f"max({sources['high']}) as {name}_high"]
        parts += [f"sum({sources['sum']}) as {name}_sum", f"{newest} order by b.{key} desc limit 1) as {name}_last"]
    within = f"a.{key} >= :from * {group} and a.{key} < (:to + 1) * {group}"
    return f"select {', '.join(parts)} from {table} a where {within} group by a.{key} / {group}"


def choose(database: sqlite3.Connection, max_points: int, since: int, until: int) -> tuple[int, int]:
    """(level, rows of it in one point) with at most so many points: the finest there is."""
    for level in range(MAX_LEVELS + 1):
        key, table = name_level(level)
        part = range(since // FACTOR**level, until // FACTOR**level + 1)
        text = f"select count(*) from (select 1 from {table} where {key} >= ? and {key} < ? limit ?)"
        rows = database.execute(text, (part.start, part.stop, FACTOR * max_points + 1)).fetchone()[0]
        if rows <= max_points:
            return level, 1
        if rows <= FACTOR * max_points and (group := neighbours(database, level, part, rows, max_points)):
            return level, group
    raise AssertionError("the last level has one row")


def neighbours(database: sqlite3.Connection, level: int, part: range, rows: int, max_points: int) -> int:
    """How many neighbouring rows become one point, at least, so that there are so few; 0 if a whole `FACTOR` does."""
    key, table = name_level(level)
    for group in range(max(2, -(-rows // max_points)), FACTOR):
        text = f"select count(distinct {key} / {group}) from {table} where {key} >= ? and {key} < ?"
        whole = (part.start // group * group, -(-part.stop // group) * group)
        if database.execute(text, whole).fetchone()[0] <= max_points:
            return group
    return 0


def name_level(level: int) -> tuple[str, str]:
    """(key, table) of a level."""
    return ("step", "points") if level == 0 else ("bucket", f"level_{level}")


def build_point(row: Sequence[object]) -> Point:
    step, time, *values = row
    return Point(step=step, time=time, **dict(zip(MEASURED, values, strict=True)))


def summarize_rows(steps_per_point: int, rows: Sequence[Sequence[Any]], metrics: Sequence[str]) -> Resolution:
    """Rows of a level, made by `rollup`, as points of their means, and their other values as columns."""
    columns = list(zip(*rows, strict=True)) or [()] * (3 + len(metrics) * len(PARTS))
    _, steps, times, *values = columns
    by_name = {name: dict(zip(PARTS, values[at * len(PARTS) :], strict=False)) for at, name in enumerate(metrics)}
    means = [compute_means(by_name[name]) if name in by_name else (None,) * len(rows) for name in MEASURED]
    points = tuple(map(build_point, zip(steps, times, *means, strict=True)))
    low, high, last = ({name: parts[part] for name, parts in by_name.items()} for part in ("low", "high", "last"))
    return Resolution(steps_per_point, points, low, high, last)


def compute_means(parts: dict[str, tuple[Any, ...]]) -> tuple[float | None, ...]:
    return tuple(total / n if n else None for total, n in zip(parts["sum"], parts["n"], strict=True))
