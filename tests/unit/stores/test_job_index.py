"""The index of jobs against a dictionary, its pages under inserts, and a file that is damaged or gone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trainyard.errors import InvalidInput
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import (
    ALIVE_S,
    ENDED,
    MOST_KEPT,
    READERS,
    JobIndex,
    JobQuery,
    read_cursor,
    remove_database,
    sort_key,
    write_cursor,
)

Row = dict[str, Any]
RUNS = [f"{number:08x}-0000-4000-8000-{number:012x}" for number in range(8)]


def make_row(number: int, **more: Any) -> Row:
    run_id = f"{number:08x}-0000-4000-8000-{number:012x}"
    default_row: Row = {
        "run_id": run_id, "id": f"job-{run_id[-12:]}", "name": f"guide-{number}", "tenant": "default",
        "state": JobState.COMPLETED, "created": 1000.0 + number, "backend": "native", "stage": "sft", "tags": ["job"],
    }  # fmt: skip
    return default_row | more


@pytest.fixture
def index(tmp_path: Path) -> JobIndex:
    return JobIndex(tmp_path / "live" / "jobs.sqlite3")


rows = st.builds(
    make_row,
    st.integers(0, 7),
    created=st.sampled_from([1.0, 1.5, 2.0]),
    state=st.sampled_from(list(JobState)),
    tenant=st.sampled_from(["default", "acme"]),
    name=st.sampled_from(
        ["guide", "guide-1f2e3d4c", "guide-1f2e3d4c-2", "guide-1f2e3d4", "Größe", "gu[i]de*-00000000"]
    ),
    backend=st.sampled_from(["native", "trl"]),
    message=st.sampled_from(["", "Done.", "a_b%c"]),
)
queries = st.builds(
    JobQuery,
    tenant=st.sampled_from(["", "default", "acme"]),
    state=st.sampled_from([None, *JobState]),
    name=st.sampled_from(["", "guide", "Größe", "guide-1f2e3d4c", "gu[i]de*", "g*"]),
    backend=st.sampled_from(["", "trl"]),
    text=st.sampled_from(["", "GUIDE", "done", "größe", "_b%", "job-0"]),
    since=st.sampled_from([None, datetime.fromtimestamp(1.5, UTC)]),
    limit=st.integers(1, 5),
)


class IndexMachine(RuleBasedStateMachine):
    """Whatever is written in whatever order, the index answers as a dictionary of the latest rows would."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.index = JobIndex(Path(self.folder.name) / "jobs.sqlite3")
        self.rows: dict[str, tuple[float, Row]] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(some=st.lists(rows, max_size=4), seen=st.integers(0, 9))
    def put(self, some: list[Row], seen: float) -> None:
        self.index.put(some, seen)
        for job_row in some:
            if self.rows.get(job_row["run_id"], (-1.0, {}))[0] <= seen:
                self.rows[job_row["run_id"]] = (seen, job_row)

    @rule(run_ids=st.sets(st.sampled_from(RUNS)), seen=st.integers(0, 9))
    def remove(self, run_ids: set[str], seen: float) -> None:
        self.index.remove(run_ids, seen)
        self.rows = {
            name: stored_row for name, stored_row in self.rows.items() if name not in run_ids or stored_row[0] >= seen
        }

    @rule()
    def lose_the_file(self) -> None:
        remove_database(self.index.path)
        self.rows = {}

    @rule(query=queries)
    def select(self, query: JobQuery) -> None:
        expected_rows = sorted(
            (job_row for _, job_row in self.rows.values() if query.accepts(job_row)), key=sort_key, reverse=True
        )
        page = self.index.select(query)
        assert page.rows == expected_rows[: query.limit]
        assert bool(page.next) is (len(expected_rows) > query.limit)

    @rule(number=st.integers(0, 7), length=st.integers(1, 36), tenant=st.sampled_from(["", "acme"]))
    def find(self, number: int, length: int, tenant: str) -> None:
        word = RUNS[number][:length]
        tenant_rows = [job_row for _, job_row in self.rows.values() if tenant in ("", job_row["tenant"])]
        expected_ids = {job_row["run_id"] for job_row in tenant_rows if job_row["run_id"].startswith(word)}
        matching_ids = {job_row["run_id"] for job_row in self.index.find(word, tenant)}
        assert matching_ids <= expected_ids
        assert len(matching_ids) == min(len(expected_ids), 6)
        by_name = {job_row["run_id"] for job_row in self.index.find("chat", tenant)}
        assert by_name <= {job_row["run_id"] for job_row in tenant_rows if job_row["name"] == "chat"}

    @invariant()
    def knows_every_run(self) -> None:
        assert self.index.runs() == set(self.rows)
        assert self.index.open_runs() == {
            name for name, (_, job_row) in self.rows.items() if job_row["state"] not in ENDED
        }
        assert self.index.read_rows(RUNS) == {name: job_row for name, (_, job_row) in self.rows.items()}


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    first=st.lists(st.tuples(st.integers(0, 500), st.sampled_from([1.0, 2.0, 3.0])), unique_by=lambda pair: pair[0]),
    later=st.lists(st.lists(st.tuples(st.integers(501, 999), st.sampled_from([0.5, 2.0, 2.5, 9.0])), max_size=3)),
    limit=st.integers(1, 7),
)
def test_pages_neither_repeat_nor_lose_a_job_under_inserts(
    first: list[tuple[int, float]], later: list[list[tuple[int, float]]], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = JobIndex(Path(folder) / "jobs.sqlite3")
        index.put([make_row(number, created=created) for number, created in first], 1.0)
        seen: list[str] = []
        cursor, arriving = "", iter(later)
        while True:
            page = index.select(JobQuery(limit=limit, after=read_cursor(cursor) if cursor else None))
            seen += [job_row["run_id"] for job_row in page.rows]
            if not page.next:
                break
            cursor = page.next
            new = {
                make_row(number)["run_id"]: make_row(number, created=created) for number, created in next(arriving, [])
            }
            index.put([job_row for run_id, job_row in new.items() if run_id not in index.runs()], 1.0)  # created once
    assert len(seen) == len(set(seen))
    assert {make_row(number)["run_id"] for number, _ in first} <= set(seen)


@given(st.floats(0, 1e12), st.uuids())
def test_a_cursor_comes_back_as_it_was(created: float, run: object) -> None:
    assert read_cursor(write_cursor((created, str(run)))) == (created, str(run))


@pytest.mark.parametrize("cursor", ["x", "!!!!", "bnVsbA", "WzFd", "W10", "é", "eyJhIjoxfQ", "W1tdLDFd"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: .* is not a cursor"):
        read_cursor(cursor)


def test_a_word_that_names_several_jobs_finds_more_than_one(index: JobIndex) -> None:
    index.put([make_row(number, name="twins") for number in range(9)], 1.0)
    assert len(index.find("twins")) == 6
    assert [job_row["run_id"] for job_row in index.find("JOB-000000000003")] == [RUNS[3]]
    assert index.find("") == []
    assert len(index.find("twin")) == 6


def test_a_later_look_is_not_undone_by_a_slower_one(index: JobIndex) -> None:
    index.put([make_row(1, state=JobState.CANCELED)], 5.0)
    assert index.put([make_row(1, state=JobState.RUNNING)], 4.0) == 0
    index.remove([RUNS[1]], 4.0)
    assert index.read_rows(RUNS)[RUNS[1]]["state"] is JobState.CANCELED


def test_equal_rows_change_nothing(index: JobIndex) -> None:
    assert index.put([make_row(1), make_row(2)], 1.0) == 2
    before = index.changes()
    assert index.put([make_row(1), make_row(2)], 2.0) == 0
    assert index.changes() == before
    assert index.put([make_row(1, message="new")], 3.0) == 1
    assert index.changes() == before + 1


def test_it_answers_for_prefect_while_somebody_keeps_it(index: JobIndex) -> None:
    assert not index.is_kept(100.0)
    index.note_try(100.0)
    assert not index.is_kept(100.0), "it was never in step"
    index.note_success(100.0)
    assert index.is_kept(100.0 + ALIVE_S)
    assert not index.is_kept(101.0 + ALIVE_S)


@pytest.mark.parametrize("damage", [b"", b"not a database" * 500])
def test_a_damaged_file_is_empty_and_filled_again(index: JobIndex, damage: bytes) -> None:
    index.put([make_row(1)], 1.0)
    remove_database(index.path)
    index.path.write_bytes(damage)
    assert index.select(JobQuery()).rows == index.find("guide-1") == []
    assert (index.synced_at(), index.changes(), index.runs()) == (None, 0, set())
    if damage:
        with pytest.raises(sqlite3.DatabaseError):
            index.put([make_row(1)], 1.0)
    assert index.put([make_row(1)], 1.0) == 1
    assert index.runs() == {RUNS[1]}


def test_a_reader_sees_a_file_that_was_replaced_or_written_over(index: JobIndex, tmp_path: Path) -> None:
    other = JobIndex(tmp_path / "other.sqlite3")
    index.put([make_row(1)], 1.0)
    other.put([make_row(2)], 1.0)
    assert index.runs() == {RUNS[1]}  # its connection is kept from here on
    remove_database(index.path)
    assert index.runs() == set()
    other.path.replace(index.path)
    assert index.runs() == {RUNS[2]}
    index.path.write_bytes(b"no database")
    assert index.runs() == set()


def test_a_thread_keeps_connections_to_a_few_files_only(tmp_path: Path) -> None:
    indexes = [JobIndex(tmp_path / f"{number}.sqlite3") for number in range(MOST_KEPT + 2)]
    for number, job_index in enumerate(indexes):
        job_index.put([make_row(number)], 1.0)
        assert job_index.runs() == {RUNS[number]}
    assert len(READERS.readers) == MOST_KEPT
    assert [job_index.runs() for job_index in indexes] == [{RUNS[number]} for number in range(len(indexes))]


LEFT_BEHIND = """
import sys, threading
from pathlib import Path
from trainyard.stores.live.job_index import JobIndex

index, read = JobIndex(Path(sys.argv[1])), threading.Event()
index.note_try(1.0)

def wait():
    print(index.facts())
    read.set()
    threading.Event().wait()

threading.Thread(target=wait, daemon=True).start()
read.wait()
"""


def test_a_process_ends_quietly_with_a_thread_that_has_read(tmp_path: Path) -> None:
    """The main thread then closes the other one's connection, which SQLite's module refuses by default."""
    command = [sys.executable, "-c", LEFT_BEHIND, str(tmp_path / "jobs.sqlite3")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("{'tried_at': 1.0}", "")


def test_a_file_of_another_version_is_made_again(index: JobIndex) -> None:
    index.put([make_row(1)], 1.0)
    database = sqlite3.connect(index.path)
    database.execute("pragma user_version = 99")
    database.close()
    assert index.runs() == set()
    with pytest.raises(sqlite3.DatabaseError):
        index.put([make_row(1)], 1.0)
    assert index.put([make_row(2)], 1.0) == 1


def test_several_writers_and_readers_share_it(index: JobIndex) -> None:
    def write(start: int) -> None:
        for number in range(start, start + 20):
            JobIndex(index.path).put([make_row(number)], 1.0)

    threads = [threading.Thread(target=write, args=(100 * start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(index.select(JobQuery(limit=1000)).rows) <= 80
    for thread in threads:
        thread.join()
    assert len(index.runs()) == 80


def test_a_job_is_found_by_the_name_it_was_given(index: JobIndex) -> None:
    index.put([make_row(1, name="first-job-ce98214c"), make_row(2, name="first-job-two-ce98214c")], 1.0)
    for word in ("first-job", "first-job-ce98214c"):
        assert [job_row["run_id"] for job_row in index.find(word)] == [RUNS[1]]
        assert [job_row["run_id"] for job_row in index.select(JobQuery(name=word)).rows] == [RUNS[1]]
    assert [job_row["run_id"] for job_row in index.find("first-job-t")] == [RUNS[2]]
    assert len(index.find("first")) == 2
    assert index.find("second") == []


def test_jobs_since_a_time_are_selected(index: JobIndex) -> None:
    index.put([make_row(number, created=1_000.0 * number) for number in range(4)], seen=1.0)
    for since in (datetime.fromtimestamp(2_000, UTC), datetime.fromtimestamp(2_000)):
        query = JobQuery(since=since)
        assert [job_row["run_id"] for job_row in index.select(query).rows] == [RUNS[3], RUNS[2]]
        assert [query.accepts(make_row(number, created=1_000.0 * number)) for number in range(4)] == [0, 0, 1, 1]


def test_jobs_are_found_by_their_group(index: JobIndex) -> None:
    """A named group counts before a sweep, and a name is not found by a part of it."""
    tags = (
        ["job", "group:bikes"],
        ["job", "sweep:bikes"],
        ["job", "group:bikes-2"],
        ["job"],
        ["group:x", "sweep:bikes"],
    )
    index.put([make_row(number, tags=list(row_tags)) for number, row_tags in enumerate(tags)], seen=1.0)
    query = JobQuery(group="bikes")
    assert [job_row["run_id"] for job_row in index.select(query).rows] == [RUNS[1], RUNS[0]]
    assert [query.accepts(make_row(number, tags=row_tags)) for number, row_tags in enumerate(tags)] == [1, 1, 0, 0, 0]
    assert [job_row["run_id"] for job_row in index.select(JobQuery(group="x")).rows] == [RUNS[4]]
    assert index.select(JobQuery(group="bike")).rows == []
