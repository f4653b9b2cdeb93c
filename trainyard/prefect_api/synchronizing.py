"""Keeps the index of jobs in step with Prefect: everything at first and every ten minutes, what may change each second.

A job that has not ended is read each second, and so is one that was due in the last minute, whatever its state. Others
change only by being removed or started again; the latter makes them open. Prefect's own client is not used: it retries
for minutes while a server is away, and readers have to learn how old the index is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from json import JSONDecodeError
from threading import Event

import httpx
from prefect.client.schemas.objects import FlowRun
from pydantic import TypeAdapter, ValidationError

from trainyard.app.live.jobs import open_index
from trainyard.app.live.trainings import SHOWN, add_files
from trainyard.app.services import require_api_url
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.prefect_api.listing import PAGE, build_row, is_upcoming
from trainyard.prefect_api.states import STATES, asker
from trainyard.settings import Settings
from trainyard.stores.live.job_ids import JOB_TAG, WORDS
from trainyard.stores.live.job_index import ENDED, Row

EVERY_S = 1.0
WHOLE_EVERY_S = 600.0
RECENT_S = 60.0
"""A run that was due within that time is read again: it may have begun and ended between two looks."""
ASK_TIMEOUT_S, PAGE_TIMEOUT_S = 5.0, 30.0
RUNS = TypeAdapter(list[FlowRun])
OPEN = [kind.value for kind, (state, _, _) in STATES.items() if state not in ENDED]
KEPT = (*SHOWN, "trainings", *WORDS)
"""What files add to a row: of a job that has ended they do not change."""


class Synchronizer:
    """The one writer of an index that is not an operation."""

    def __init__(self, settings: Settings, say: Callable[[str], None], now: Callable[[], float] = time.time) -> None:
        self.settings, self.say, self.now = settings, say, now
        self.index = open_index(settings)
        self.api_url = ""
        self.whole_due, self.was_away = 0.0, False
        self.keeper: sqlite3.Connection | None = None
        """Open, so that the log of changes is not written back by each that closes the file."""

    def run(self, stop: Event) -> None:
        """Synchronise each second until `stop` is set. A missing server is asked again, and reported once."""
        while not stop.is_set():
            started_s = time.monotonic()
            self.attempt()
            stop.wait(max(0.1, EVERY_S - (time.monotonic() - started_s)))

    def attempt(self) -> bool:
        """Synchronise once; return whether Prefect answered and the index was written."""
        try:
            self.index.note_try(self.now())
            self.api_url = self.api_url or require_api_url(self.settings)
            self.step()
        except (TrainyardError, httpx.HTTPError, ValidationError, JSONDecodeError, sqlite3.Error) as error:
            if not self.was_away:
                self.say(f"the index of jobs is not in step with Prefect: {error}")
            self.was_away, self.api_url = True, ""
            self.whole_due = self.whole_due if not isinstance(error, sqlite3.Error) else 0.0
            return False
        if self.was_away:
            self.say("the index of jobs is in step with Prefect again")
        self.was_away = False
        return True

    def step(self) -> None:
        """Everything, if that is due or nothing is there; else what may have changed."""
        at = self.now()
        if at >= self.whole_due or self.index.synced_at() is None:
            self.read_whole(at)
            self.whole_due = at + WHOLE_EVERY_S
        else:
            self.read_changing(at)
        self.index.note_success(at)

    def read_whole(self, at: float) -> None:
        """Read every job; remove those that Prefect no longer has."""
        self.keep_open()
        before, seen = self.index.runs(), set[str]()
        for page in self.pages({}, PAGE_TIMEOUT_S):
            self.write(page, at)
            seen |= {str(run.id) for run in page}
        self.read_missing(before - seen, at)

    def keep_open(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
        self.keeper = self.index.keep_open()

    def read_changing(self, at: float) -> None:
        """Read the jobs that have not ended, those that were open until now, and those that were due just now."""
        before = self.index.open_runs()
        since = datetime.fromtimestamp(at - RECENT_S, UTC).isoformat()
        until = datetime.fromtimestamp(at + RECENT_S, UTC).isoformat()
        filters = ({"state": {"type": {"any_": OPEN}}}, {"expected_start_time": {"after_": since, "before_": until}})
        runs = {str(run.id): run for run_filter in filters for page in self.pages(run_filter) for run in page}
        self.write(runs.values(), at)
        self.read_missing(before - runs.keys(), at)

    def read_missing(self, run_ids: set[str], at: float) -> None:
        """Read the jobs that a query did not find; remove those that Prefect no longer has."""
        ids = sorted(run_ids)
        for start in range(0, len(ids), PAGE):
            some = ids[start : start + PAGE]
            runs = [run for page in self.pages({"id": {"any_": some}}) for run in page]
            self.write(runs, at)
            if missing := set(some) - {str(run.id) for run in runs}:
                self.index.remove(missing, at)

    def pages(self, run_filter: JsonObject, timeout_s: float = ASK_TIMEOUT_S) -> Iterator[list[FlowRun]]:
        """Yield every job of a filter, page by page."""
        where = {"tags": {"all_": [JOB_TAG]}, **run_filter}
        offset = 0
        while True:
            body = {"flow_runs": where, "limit": PAGE, "offset": offset, "sort": "ID_DESC"}
            answer = asker(self.api_url).post("/flow_runs/filter", json=body, timeout=timeout_s)
            page = RUNS.validate_json(answer.raise_for_status().content)
            yield [run for run in page if not is_upcoming(run)]
            if len(page) < PAGE:
                return
            offset += PAGE

    def write(self, runs: Iterable[FlowRun], at: float) -> None:
        rows = [build_row(run, self.api_url) for run in runs]
        existing = self.index.read_rows(row["run_id"] for row in rows)
        self.index.put([self.complete(row, existing.get(row["run_id"])) for row in rows], at)

    def complete(self, row: Row, before: Row | None) -> Row:
        """Return the row with what its files say; that of a job which had ended before is taken from its row."""
        is_settled = before is not None and row["state"] in ENDED and before["state"] == row["state"]
        if before is not None and is_settled and before["attempts"] == row["attempts"] and "trainings" in before:
            return {**row, **{name: before[name] for name in KEPT if name in before}}
        return add_files(row, self.settings)
