"""Jobs by their words: from the index where a service keeps it, else from Prefect.

    a synchroniser keeps the index     the index answers; `as_of` says when it is older than three seconds
    nobody keeps it                    Prefect answers
    Prefect is away                    the index answers, if there is one, and `as_of` says how old it is

A job that the index does not have may have been created a moment ago: then Prefect is asked.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainyard.api.context import Context
from trainyard.api.live.recorded import find_recorded, merge_recorded
from trainyard.api.live.trainings import with_files
from trainyard.api.live.waits import with_waits
from trainyard.api.records import RunResult
from trainyard.api.stack import import_prefect_client
from trainyard.errors import Conflict, NotFound, TrainyardError, Unavailable
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import given_name, group_of
from trainyard.stores.live.job_index import JobIndex, JobPage, JobQuery, Row
from trainyard.stores.notes import NoteStore

SHOWN_AMBIGUOUS = 5


class FoundJob(NamedTuple):
    row: Row
    as_of: float | None
    """When the row was true, if that may be long ago (seconds of the epoch)."""


class FoundJobs(NamedTuple):
    page: JobPage
    as_of: float | None


def open_index(settings: Settings) -> JobIndex:
    return JobIndex(settings.home / "live" / "jobs.sqlite3")


def find_job(word: str, context: Context) -> FoundJob:
    """The one job that a word names, with the part of its files, and with what it waits for.

    Raises as `look_up_job`.
    """
    row, as_of = look_up_job(word, context)
    (row,) = with_waits([row], context.settings, context.caller.tenant)
    return FoundJob(with_labels(row, context.settings), as_of)


def look_up_job(word: str, context: Context) -> FoundJob:
    """The one job that a word names, with the part of its files.

    Raises `NotFound` (`E-JOB-NOT-FOUND`), `Conflict` (`E-JOB-NOT-FOUND`) naming the candidates, and `Unavailable` if
    neither Prefect nor the index can say.
    """
    settings, tenant, index = context.settings, context.caller.tenant, open_index(context.settings)
    if recorded := find_recorded(word, settings, tenant):
        return FoundJob(the_only(recorded, word), None)
    now, fresh = time.time(), index.freshness()
    if fresh.is_kept(now) and (found := index.find(word, tenant)):
        return FoundJob(the_only(found, word), fresh.as_of(now))
    try:
        row = import_prefect_client(settings, "listing").find_job(word, tenant)
    except Unavailable:
        found = index.find(word, tenant)
        if not found:
            raise
        return FoundJob(the_only(found, word), fresh.as_of(now))
    return FoundJob(with_files(row, settings), None)


def shortest_name(run_id: str, name: str, context: Context) -> str:
    """Return the shortest name of a run that names no other one: without its digest, else `name`."""
    short = given_name(name)
    try:
        is_alone = short != name and look_up_job(short, context).row["run_id"] == run_id
    except TrainyardError:  # of several runs, or nobody can say
        is_alone = False
    return short if is_alone else name


def list_jobs(query: JobQuery, context: Context) -> FoundJobs:
    """A page of the jobs of a query, with what they wait for. Raises as `select_page`."""
    page, as_of = select_page(query, context)
    rows = with_waits(page.rows, context.settings, context.caller.tenant)
    return FoundJobs(JobPage([with_labels(row, context.settings) for row in rows], page.next), as_of)


def with_labels(row: Row, settings: Settings) -> Row:
    """Return the row with its group and with what somebody wrote about it."""
    note = NoteStore(settings.notes).read(row["run_id"])
    return row | {"group": group_of(row.get("tags", ())), "note": note.text if note else ""}


def select_page(query: JobQuery, context: Context) -> FoundJobs:
    """A page of the jobs of a query. Raises `Unavailable` if neither Prefect nor the index can say."""
    settings, index = context.settings, open_index(context.settings)
    now, fresh = time.time(), index.freshness()
    if fresh.is_kept(now):
        return FoundJobs(merge_recorded(index.select(query), query, settings), fresh.as_of(now))
    try:
        rows, cursor = import_prefect_client(settings, "listing").select_jobs(query, settings.runs)
    except Unavailable:
        if fresh.synced_at is None:
            raise
        return FoundJobs(merge_recorded(index.select(query), query, settings), fresh.as_of(now))
    page = JobPage([with_files(row, settings) for row in rows], cursor)
    return FoundJobs(merge_recorded(page, query, settings), None)


def the_only(found: Sequence[dict[str, Any]], word: str) -> dict[str, Any]:
    """The one job that was found. Raises `NotFound` (`E-JOB-NOT-FOUND`) and `Conflict` (`E-JOB-NOT-FOUND`)."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"There is no job {word!r}.", do="List them by `trainyard jobs list`.", code="E-JOB-NOT-FOUND")
    ids = ", ".join(row["id"] for row in found[:SHOWN_AMBIGUOUS]) + (" …" if len(found) > SHOWN_AMBIGUOUS else "")
    raise Conflict(
        f"{word!r} means several jobs: {ids}.",
        why="It is the beginning of several ids, or a name that several runs were given.",
        do="Give the id, or enough of its beginning.",
        code="E-JOB-NOT-FOUND",
    )


def note_started(result: RunResult, context: Context) -> None:
    """Let an index that is kept have a run that was started just now, so that lists show it at once."""
    if open_index(context.settings).is_kept(time.time()):
        note_change(import_prefect_client(context.settings, "listing").find_job(result.run_id), context)


def note_change(row: Row, context: Context) -> Row:
    """Write what Prefect has just said about a job into an index that is kept; return the row with its files' part."""
    seen, index = time.time(), open_index(context.settings)
    row = with_files(row, context.settings)
    if index.is_kept(seen):
        try:
            index.put([row], seen)
        except sqlite3.Error as error:
            context.say(f"the index of jobs shows this in a moment only: {error}")
    return row
