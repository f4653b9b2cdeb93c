"""Rows of jobs: from the index where a service keeps it, else from Prefect.

a synchroniser keeps the index     the index answers; `as_of` says when it is older than three seconds
nobody keeps it                    Prefect answers
Prefect is away                    the index answers, if there is one, and `as_of` says how old it is

Jobs of `TrainingManager` as rows of lists: they have a record in the home and no run in Prefect.

Such a job lives in the program that submitted it. Its record is read here, its steps from its work folder; only that
program can pause, resume or cancel it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from trainyard.app.context import Context
from trainyard.app.live.trainings import SHOWN, add_files, curves_folder, describe
from trainyard.app.live.waits import add_waits
from trainyard.app.run_records import RunResult
from trainyard.app.runs import connect_runs
from trainyard.app.training_logs import TrainingLogs
from trainyard.backends.oom import follow_restarts
from trainyard.errors import Conflict, Unavailable
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.jobs import JobRecord, JobStore, NoteStore, SubmittingProcess
from trainyard.stores.live.job_ids import derive_job_id, find_group, is_named
from trainyard.stores.live.job_index import JobIndex, JobPage, JobQuery, Row, build_page, sort_key
from trainyard.stores.spending import SpendingStore

NODE = "trainer"
OPEN = (JobState.PENDING, JobState.RUNNING)


def list_recorded_rows(settings: Settings, tenant: str = "") -> Iterator[Row]:
    """Yield the jobs of this home's managers, the newest first; of one tenant if it is given."""
    for record in JobStore(settings.home / "jobs").list():
        if tenant in ("", record.tenant):
            yield row_of_record(record, settings)


def row_of_record(record: JobRecord, settings: Settings) -> Row:
    """Return a record as a row; of a job whose program has ended, that it failed."""
    work = TrainingLogs(NODE, follow_restarts(Path(record.work)), record.created)
    training = describe(work, curves_folder(settings))
    process = record.process if record.state in OPEN else None
    died = process is not None and not is_alive(process)
    return {
        "id": derive_job_id(record.id),
        "run_id": record.id,
        "name": record.name or f"{record.stage.value}-{record.id[:8]}",
        "tenant": record.tenant,
        "state": JobState.FAILED if died else record.state,
        "detail": "crashed" if died else record.detail if record.state in OPEN else "",
        "message": "Its program ended; submit the same job again to continue it." if died else record.detail,
        "created": record.created,
        "started": record.created,
        "seconds": round(record.updated - record.created, 1),
        "attempts": 1,
        "pid": process.pid if process and not died else None,
        "url": "",
        "parameters": {},
        "waits_for_trainer": False,
        "tags": ("manager",),
        "stage": record.stage.value,
        "method": record.method.value,
        "backend": record.backend.value,
        "base_model": record.base_model,
        **{name: training[name] for name in SHOWN},
        "trainings": [training],
        "is_recorded": True,
        "spending": Path(record.work).name,
    }


def is_alive(process: SubmittingProcess) -> bool:
    """Return whether the program that submitted a job is running."""
    try:
        return bool(abs(psutil.Process(process.pid).create_time() - process.started) < 1)
    except psutil.NoSuchProcess:
        return False


def find_recorded(word: str, settings: Settings, tenant: str = "") -> list[Row]:
    """Return the jobs of managers that a word names: an id, the beginning of one, or a name."""
    lower = word.lower()
    return [
        row
        for row in list_recorded_rows(settings, tenant)
        if is_named(word, row["name"]) or (word and (row["id"].startswith(lower) or row["run_id"].startswith(lower)))
    ]


def merge_recorded(page: JobPage, query: JobQuery, settings: Settings) -> JobPage:
    """Return a page with the managers' jobs of the query in their places."""
    accepted = [row for row in list_recorded_rows(settings) if query.accepts(row)]
    if not accepted:
        return page
    rows = sorted([*page.rows, *accepted], key=sort_key, reverse=True)
    if len(rows) > query.limit:
        return build_page(rows, query.limit)
    return JobPage(rows, page.next)


def refuse_steering(word: str, settings: Settings, tenant: str = "") -> None:
    """Raise `Conflict` (`E-JOB-STATE`) for a job of a manager, which only its program steers."""
    for row in find_recorded(word, settings, tenant)[:1]:
        where = f"process {row['pid']}" if row["pid"] else "a program that has ended"
        raise Conflict(
            f"The job {row['name']} was submitted by {where}, through TrainingManager.",
            why=f"It is {row['state']}, and no run of the Prefect server.",
            do="Call `pause`, `resume` or `cancel` of that manager; `trainyard jobs` shows the job.",
            code="E-JOB-STATE",
        )


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
    """Return the row with its group, its notes and what it has cost so far."""
    note = NoteStore(settings.notes).read(row["run_id"])
    cost = SpendingStore(settings.spending).find_cost(row.get("spending") or row["run_id"])
    return row | {"group": find_group(row.get("tags", ())), "note": note.text if note else "", "cost": cost}


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
    """Write Prefect's latest state of a job into the index, if there is one; return the row with its files' part."""
    seen, index = time.time(), open_index(context.settings)
    row = add_files(row, context.settings)
    if index.is_kept(seen):
        try:
            index.put([row], seen)
        except sqlite3.Error as error:
            context.say(f"the index of jobs shows this in a moment only: {error}")
    return row
