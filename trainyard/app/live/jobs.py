"""Rows of jobs: from the index where a service keeps it, else from Prefect.

a synchroniser keeps the index     the index answers; `as_of` says when it is older than three seconds
nobody keeps it                    Prefect answers
Prefect is away                    the index answers, if there is one, and `as_of` says how old it is
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

from trainyard.app.context import Context
from trainyard.app.live.manager_jobs import merge_recorded
from trainyard.app.live.trainings import add_files
from trainyard.app.live.waits import add_waits
from trainyard.app.run_records import RunResult
from trainyard.app.runs import connect_runs
from trainyard.errors import Unavailable
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import find_group
from trainyard.stores.live.job_index import JobIndex, JobPage, JobQuery, Row
from trainyard.stores.notes import NoteStore


class FoundJobs(NamedTuple):
    page: JobPage
    as_of: float | None


def open_index(settings: Settings) -> JobIndex:
    return JobIndex(settings.home / "live" / "jobs.sqlite3")


def list_job_rows(query: JobQuery, context: Context) -> FoundJobs:
    """Return a page of the jobs of a query, with what they wait for. Raises as `select_page`."""
    page, as_of = select_page(query, context)
    rows = add_waits(page.rows, context.settings, context.caller.tenant)
    return FoundJobs(JobPage([add_labels(row, context.settings) for row in rows], page.next), as_of)


def add_labels(row: Row, settings: Settings) -> Row:
    """Return the row with its group and with its notes."""
    note = NoteStore(settings.notes).read(row["run_id"])
    return row | {"group": find_group(row.get("tags", ())), "note": note.text if note else ""}


def select_page(query: JobQuery, context: Context) -> FoundJobs:
    """Return a page of the jobs of a query. Raises `Unavailable` if neither Prefect nor the index can say."""
    settings, index = context.settings, open_index(context.settings)
    now, fresh = time.time(), index.freshness()
    if fresh.is_kept(now):
        return FoundJobs(merge_recorded(index.select(query), query, settings), fresh.as_of(now))
    try:
        rows, cursor = connect_runs(settings).select_jobs(query, settings.runs)
    except Unavailable:
        if fresh.synced_at is None:
            raise
        return FoundJobs(merge_recorded(index.select(query), query, settings), fresh.as_of(now))
    page = JobPage([add_files(row, settings) for row in rows], cursor)
    return FoundJobs(merge_recorded(page, query, settings), None)


def note_started(result: RunResult, context: Context) -> None:
    """Let an index that is kept have a run that was started just now, so that lists show it at once."""
    if open_index(context.settings).is_kept(time.time()):
        note_change(connect_runs(context.settings).find_job(result.run_id), context)


def note_change(row: Row, context: Context) -> Row:
    """Write what Prefect has just said about a job into an index that is kept; return the row with its files' part."""
    seen, index = time.time(), open_index(context.settings)
    row = add_files(row, context.settings)
    if index.is_kept(seen):
        try:
            index.put([row], seen)
        except sqlite3.Error as error:
            context.say(f"the index of jobs shows this in a moment only: {error}")
    return row
