"""Jobs as the server knows them: found by id, by the beginning of an id, or by name; listed; their log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, LogFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort, LogSort
from prefect.exceptions import ObjectNotFound

from trainyard.app.jobs.logs import PLANNED, strip_traceback
from trainyard.app.live.trainings import add_chain_facts
from trainyard.app.names import require_single
from trainyard.app.runs import LogRow
from trainyard.json_types import JsonObject
from trainyard.prefect_api.operating import find_process
from trainyard.prefect_api.server import client
from trainyard.prefect_api.states import run_state, waits_for_trainer
from trainyard.prefect_api.watching import run_url
from trainyard.spec.states import JobState
from trainyard.stores.live.job_ids import JOB_ID, JOB_TAG, RUN_ID, name_run, read_facts, select_meant
from trainyard.stores.live.job_index import JobPage, JobQuery, build_page, sort_key

PAGE = 200
"""Rows that the server gives at once, at most."""
SLACK_S = 3600.0
"""By how much a run may be due before it was created: clocks differ, and a client may name an earlier time."""


def read_pages(read: Callable[..., Sequence[Any]], offset: int = 0, **filters: Any) -> Iterator[Any]:
    """Yield every row of a query from the `offset`-th on, read page by page."""
    while True:
        page = read(limit=PAGE, offset=offset, **filters)
        yield from page
        if len(page) < PAGE:
            return
        offset += PAGE


def read_job_runs(prefect: SyncPrefectClient, *tags: str) -> Iterator[FlowRun]:
    """Return every run with a trainer that has these tags, too, the newest first."""
    run_filter = FlowRunFilter.model_validate({"tags": {"all_": [JOB_TAG, *tags]}})
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    runs = read_pages(prefect.read_flow_runs, flow_run_filter=run_filter, sort=newest)
    return (run for run in runs if not is_upcoming(run))


def is_upcoming(run: FlowRun) -> bool:
    """Return whether a run is in the calendar of a schedule: Prefect creates several before the first is due."""
    due, state = run.expected_start_time, run.state
    is_planned = run.auto_scheduled and state is not None and state.name == PLANNED
    return bool(is_planned and due is not None and due > datetime.now(UTC))


def select_jobs(query: JobQuery, runs: Path) -> JobPage:
    """Return the jobs of a query, the newest first. Facts that a run's parameters lack are in its folder below `runs`.

    The server orders by the time when a run is due, which is not before it was created: of a page from then on, no job
    is newer than the last one that was found.
    """
    rows: list[JsonObject] = []
    with client() as prefect:
        for run in read_job_runs(prefect):
            due = stamp(run.expected_start_time)
            if len(rows) > query.limit and due is not None and due < (rows[-1]["created"] or 0.0) - SLACK_S:
                break
            row = build_row(run, str(prefect.api_url))
            row = row if row["backend"] else add_chain_facts(row, runs / row["run_id"])
            if query.accepts(row):
                rows = sorted([*rows, row], key=sort_key, reverse=True)[: query.limit + 1]
    return build_page(rows, query.limit)


def list_tagged(tag: str, limit: int | None = None, offset: int = 0) -> list[JsonObject]:
    """Return the runs with a tag, the newest first, and whether each has ended."""
    run_filter = FlowRunFilter.model_validate({"tags": {"all_": [tag]}})
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    with client() as prefect:
        runs = islice(read_pages(prefect.read_flow_runs, offset, flow_run_filter=run_filter, sort=newest), limit)
        return [
            {**build_row(run, str(prefect.api_url)), "ended": run.state is not None and run.state.is_final()}
            for run in runs
        ]


def select_ended(run_ids: Iterable[str]) -> set[str]:
    """Return those of these runs that the server knows to have ended: neither waiting, running nor paused."""
    ids = [UUID(run_id) for run_id in run_ids if RUN_ID.fullmatch(run_id.lower())]
    ended: set[str] = set()
    with client() as prefect:
        for start in range(0, len(ids), PAGE):
            run_filter = FlowRunFilter.model_validate({"id": {"any_": ids[start : start + PAGE]}})
            runs = prefect.read_flow_runs(flow_run_filter=run_filter, limit=PAGE)
            ended |= {str(run.id) for run in runs if run.state is not None and run.state.is_final()}
    return ended


def find_job(name: str, tenant: str = "") -> JsonObject:
    """Return the one job of that id, run id, name, or beginning of one of them; of that tenant, if one is given.

    Raises `NotFound` (`E-JOB-NOT-FOUND`) and `Conflict` (`E-JOB-NOT-FOUND`) naming the candidates.
    """
    with client() as prefect:
        rows = [
            row for run in candidates(prefect, name) if belongs(row := build_row(run, str(prefect.api_url)), tenant)
        ]
    return require_single(rows, name)


def find_deployment(run_id: str) -> str:
    """Return the deployment that a run was started by: `qa-pipeline/local`; empty where that is not there any more."""
    with client() as prefect:
        run = prefect.read_flow_run(UUID(run_id))
        run_filter = FlowRunFilter.model_validate({"id": {"any_": [run_id]}})
        flow = prefect.read_flows(flow_run_filter=run_filter, limit=1)
        if run.deployment_id is None or not flow:
            return ""
        try:
            return f"{flow[0].name}/{prefect.read_deployment(run.deployment_id).name}"
        except ObjectNotFound:
            return ""


def belongs(row: Mapping[str, object], tenant: str) -> bool:
    """Return whether a caller of that tenant may see a job; "" may see all."""
    return tenant in ("", row["tenant"])


def candidates(prefect: SyncPrefectClient, name: str) -> Iterator[FlowRun]:
    """Yield the runs that a user may mean by a word."""
    if RUN_ID.fullmatch(name.lower()):
        yield from prefect.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [name]}}))
    elif JOB_ID.fullmatch(name) and (tagged := list(read_job_runs(prefect, name))):
        yield from tagged
    else:
        yield from select_meant(name, list(read_job_runs(prefect)), lambda run: (str(run.id), run.name, run.tags))


def build_row(run: FlowRun, api_url: str) -> JsonObject:
    """Return one job as a list shows it. A paused run whose process lives is still *pausing*."""
    state, detail = run_state(run.state)
    process = find_process(run) if state in (JobState.RUNNING, JobState.PAUSED) else None
    if state is JobState.PAUSED and process is not None:
        detail = "pausing"
    return {
        "id": name_run(str(run.id), run.tags),
        "run_id": str(run.id),
        "name": run.name,
        "state": state,
        "detail": detail,
        "message": (run.state.message if run.state else "") or "",
        "created": stamp(run.created),
        "started": stamp(run.start_time),
        "seconds": round(run.estimated_run_time.total_seconds(), 1),
        "attempts": run.run_count,
        "pid": process.pid if process else None,
        "url": run_url(api_url, run.id),
        "parameters": run.parameters,
        "waits_for_trainer": waits_for_trainer(run.state),
        "tags": tuple(sorted(run.tags)),
        **read_facts(run.tags, run.parameters),
    }


def stamp(when: datetime | None) -> float | None:
    """Return seconds of the epoch."""
    return when.timestamp() if when else None


def read_log(run_id: str, offset: int = 0, most: int | None = None) -> list[LogRow]:
    """Return the run's log lines from the `offset`-th on, in order, at most so many: {time, level, text}."""
    log_filter = LogFilter.model_validate({"flow_run_id": {"any_": [run_id]}})
    with client() as prefect:
        every = read_pages(prefect.read_logs, offset, log_filter=log_filter, sort=LogSort.TIMESTAMP_ASC)
        lines = islice(every, most)
        return [
            LogRow(time=line.timestamp.timestamp(), level=line.level, text=strip_traceback(line.message))
            for line in lines
        ]
