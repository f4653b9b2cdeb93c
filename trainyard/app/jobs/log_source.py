"""Runs and their logs, asked for by plain HTTP: the first line is there before Prefect's client would be imported.

Only the home's own server is asked so, whose login this home knows; any other one is asked by Prefect's client.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx
import psutil

from trainyard.app.names import require_single
from trainyard.app.runs import LogRow, connect_runs
from trainyard.app.services import is_own, locked_out_error, resolve_api_url, unreachable_error
from trainyard.cancellation import CALLER_HOOKS
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.auth_string import auth_header, read_auth
from trainyard.stores.live.job_ids import JOB_ID, JOB_TAG, RUN_ID, find_tenant, name_run, select_meant

PAGE = 200
"""Rows that the server gives at once, at most."""
TIMEOUT_S = 30.0
NO_TRACEBACK = "\nNoneType: None"
PLANNED = "Scheduled"
"""Prefect's name of the state of a run that is not due yet; a late one has another."""
WORKER_LABEL = "prefect.worker.name"
WORDS = {
    "SCHEDULED": JobState.PENDING, "PENDING": JobState.PENDING, "RUNNING": JobState.RUNNING, "PAUSED": JobState.PAUSED,
    "CANCELLING": JobState.RUNNING, "COMPLETED": JobState.COMPLETED, "FAILED": JobState.FAILED,
    "CRASHED": JobState.FAILED, "CANCELLED": JobState.CANCELED,
}  # fmt: skip
"""Prefect's types of states in Trainyard's words, as `runs.states` has them (a test compares)."""


class LogSource(Protocol):
    """Source of a run's log."""

    def find_job(self, name: str, tenant: str = "") -> JsonObject:
        """Return the row of the one job that a word names: id, run_id, state, pid."""

    def read_log(self, run_id: str, offset: int = 0) -> list[LogRow]:
        """Return the run's lines from an offset on, in order: {time, level, text}."""


def choose_source(settings: Settings) -> LogSource:
    """Return what knows the logs of runs. Raises `Unavailable` (`E-NO-SERVER`) where there is no server."""
    url = resolve_api_url(settings)
    if is_own(settings, url):
        return OwnServer(settings, url)
    return connect_runs(settings)


class OwnServer:
    """The home's own server. Its methods raise `Unavailable` (`E-SERVER-UNREACHABLE`, `E-AUTH`)."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings, self.url = settings, url

    def find_job(self, name: str, tenant: str = "") -> JsonObject:
        """Return id, run id, state and process of the one job that a word names.

        Raises `NotFound` (`E-JOB-NOT-FOUND`) and `Conflict` (`E-JOB-NOT-FOUND`) naming the candidates.
        """
        rows = (run for run in self.candidates(name) if tenant in ("", find_tenant(run["tags"])))
        return require_single([row_of_log(run) for run in rows], name)

    def candidates(self, word: str) -> Iterator[JsonObject]:
        """Yield the runs that a user may mean by a word."""
        if RUN_ID.fullmatch(word.lower()):
            yield from self.pages("flow_runs", {"id": {"any_": [word.lower()]}})
            return
        tags = [JOB_TAG, word] if JOB_ID.fullmatch(word) else [JOB_TAG]
        flow_runs = self.pages("flow_runs", {"tags": {"all_": tags}}, sort="EXPECTED_START_TIME_DESC")
        runs = [run for run in flow_runs if not is_upcoming(run)]
        yield from select_meant(word, runs, lambda run: (run["id"], run["name"], run["tags"]))

    def read_log(self, run_id: str, offset: int = 0) -> list[LogRow]:
        """Return the run's lines from an offset on, in order: {time, level, text}."""
        query = {"flow_run_id": {"any_": [run_id]}}
        return [build_log_row(log) for log in self.pages("logs", query, sort="TIMESTAMP_ASC", offset=offset)]

    def pages(self, kind: str, query: JsonMapping, *, sort: str = "", offset: int = 0) -> Iterator[Any]:
        """Yield every row of a query from the `offset`-th on."""
        encrypted = not self.url.startswith("http://")
        headers = auth_header(read_auth(self.settings))
        order = {"sort": sort} if sort else {}
        try:
            with httpx.Client(timeout=TIMEOUT_S, verify=encrypted, headers=headers, event_hooks=CALLER_HOOKS) as client:
                while True:
                    body = {kind: query, "limit": PAGE, "offset": offset, **order}
                    reply = client.post(f"{self.url}/{kind}/filter", json=body)
                    if reply.status_code == httpx.codes.UNAUTHORIZED:
                        raise locked_out_error(self.settings, self.url)
                    page = reply.raise_for_status().json()
                    yield from page
                    offset += PAGE
                    if len(page) < PAGE:
                        return
        except httpx.HTTPError as error:
            raise unreachable_error(self.url) from error


def row_of_log(run: JsonMapping) -> dict[str, object]:
    """Return what following a log needs of a run."""
    state = WORDS.get(str(run.get("state_type")), JobState.PENDING)
    busy = state in (JobState.RUNNING, JobState.PAUSED)
    process = live_process(run.get("labels") or {}, run.get("infrastructure_pid")) if busy else None
    job_id = name_run(run["id"], run["tags"])
    return {"id": job_id, "run_id": run["id"], "state": state, "pid": process.pid if process else None}


def is_upcoming(run: JsonMapping) -> bool:
    """Return whether a run is in the calendar of a schedule."""
    due = run.get("expected_start_time")
    planned = run.get("auto_scheduled") and run.get("state_name") == PLANNED
    return bool(planned and due and datetime.fromisoformat(due) > datetime.now(UTC))


def live_process(labels: JsonMapping, pid: object) -> psutil.Process | None:
    """Return the live process of a run of this machine; a pid that belongs to something else by now does not count."""
    worker = str(labels.get(WORKER_LABEL, ""))
    if worker and not worker.startswith(socket.gethostname()):
        return None
    try:
        process = psutil.Process(int(str(pid or 0)))
        is_prefect = any("prefect" in word for word in process.cmdline())
        return process if is_prefect and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, ValueError):
        return None


def build_log_row(log: JsonMapping) -> LogRow:
    at = datetime.fromisoformat(log["timestamp"]).timestamp()
    return {"time": at, "level": log["level"], "text": strip_traceback(log["message"])}


def strip_traceback(message: str) -> str:
    """Return a message without the traceback of no exception, which Prefect adds where a flow returned a failure."""
    return message.removesuffix(NO_TRACEBACK)
