"""Logs of jobs: the run's own from the server, its trainers' from their files; a part, all, or as they come.

Runs and their logs, asked for by plain HTTP: the first line is there before Prefect's client would be imported.

Only the home's own server is asked so, whose login this home knows; any other one is asked by Prefect's client.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil
from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.live.jobs import NODE, find_recorded, refuse_steering
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job, require_single
from trainyard.app.responses import Response
from trainyard.app.runs import LogRow, RunsClient, connect_runs
from trainyard.app.secrets import list_secrets, read_text_before, redact_lines
from trainyard.app.services import is_own, locked_out_error, resolve_api_url, unreachable_error
from trainyard.app.training_logs import LAST_BYTES, StepLog, find_training_logs
from trainyard.cancellation import CALLER_HOOKS
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import (
    EventTail,
    LineSpan,
    LineTail,
    find_last_end,
    read_last_span,
    read_spans,
    read_spans_before,
)
from trainyard.errors import NotFound
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.jobs import LogsInput
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


FOLLOW_EVERY_S = 1.0
RUN_LOG = "run"
RUN_LINES = 1000
"""Of the run's own log in one part."""
ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.PAUSED)


class LogLine(Response):
    source: str
    """`run`, or the id of the trainer whose own log it is."""
    text: str
    level: int = 20
    time: float | None = None


class JobLog(Response):
    id: str
    lines: tuple[LogLine, ...]
    next_offset: dict[str, int] = Field({})
    """Log -> where it ends as far as it is given here: `offset` of the next part. Of `run` it counts lines."""
    first_offset: dict[str, int] = Field({})
    """Log -> where it begins as far as it is given here: `before` of the part before; 0 where nothing is before it."""
    restarted: bool = False
    """The log is shorter than the offset: it was cut or replaced, and is given from its start."""
    streamed: bool = False
    """The lines were already printed, each as it came."""


def show_logs(request: LogsInput, context: Context) -> JobLog:
    if find_recorded(request.job, context.settings, context.caller.tenant):
        if request.follow:
            refuse_steering(request.job, context.settings, context.caller.tenant)
        return read_part(request.model_copy(update={"source": request.source or NODE}), context)
    if request.source is not None and not request.follow:
        return read_part(request, context)
    return read_logs(choose_source(context.settings), request, context)


def is_gone(row: Mapping[str, object]) -> bool:
    return row["pid"] is None and row["state"] in ENDS


def read_part(request: LogsInput, context: Context) -> JobLog:
    """Return a part of one log: whole lines, with every character as it was written, except for secrets.

    From `offset` on; or before `before`, or with `tail` at its end, so that a large log is read from its end.
    Raises `NotFound` (`E-NOT-FOUND`) for a trainer that the job does not have.
    """
    row, _ = find_job(request.job, context)
    source, secret_values = request.source or RUN_LOG, list_secrets(context.settings)
    if source == RUN_LOG and "is_recorded" not in row:
        return read_run_log(row, request, connect_runs(context.settings), secret_values)
    logs = {work.node: work.log for work in find_trainings(row)}
    if source not in logs:
        raise NotFound(
            f"The job {row['name']} has no log of {source!r}.",
            why=f"It has: {', '.join((RUN_LOG, *logs))}.",
            do="Name one of them.",
            code="E-NOT-FOUND",
        )
    path, has_ended = logs[source], row["state"] in ENDS
    if request.before is not None or request.tail is not None:
        return redact_part(read_end(row["id"], source, path, request, has_ended=has_ended), secret_values, path)
    size, start = path.stat().st_size if path.is_file() else 0, request.offset or 0
    restarted = start > size
    start = 0 if restarted else start
    read = read_spans(path, start, request.limit_bytes)
    if has_ended and not read:
        read = read_last_span(path, start, request.limit_bytes)
    return redact_part(build_part(row["id"], source, read, start, restarted=restarted), secret_values, path)


def read_end(job: str, source: str, path: Path, request: LogsInput, *, has_ended: bool) -> JobLog:
    """Return the last lines before an offset, by default before the end of the file.

    A last line without its end is a line once nobody writes it any more.
    """
    size = path.stat().st_size if path.is_file() else 0
    last = size if has_ended or not size else find_last_end(path, size)
    end = last if request.before is None else min(request.before, last)
    return build_part(job, source, read_spans_before(path, end, request.limit_bytes, request.tail), end)


def build_part(job: str, source: str, read: Sequence[LineSpan], offset: int, *, restarted: bool = False) -> JobLog:
    """Lines of one log as a part of it; without lines it is empty at its place."""
    lines = [LogLine(source=source, text=span.data.decode("utf-8", "replace")) for span in read]
    first, end = (read[0].start, read[-1].end) if read else (offset, offset)
    return JobLog(
        id=job, lines=tuple(lines), next_offset={source: end}, first_offset={source: first}, restarted=restarted
    )  # fmt: skip


def redact_part(part: JobLog, secret_values: Sequence[str], path: Path) -> JobLog:
    """Return a part of a log without the secrets that a training or a library has printed."""
    if not part.lines:
        return part
    (first,) = part.first_offset.values()
    return part.model_copy(
        update={"lines": tuple(redact_log_lines(part.lines, secret_values, read_text_before(path, first)))}
    )


def redact_log_lines(lines: Iterable[LogLine], secret_values: Sequence[str], before: str = "") -> Iterator[LogLine]:
    originals = list(lines)
    texts = redact_lines([line.text for line in originals], secret_values, before)
    for line, text in zip(originals, texts, strict=True):
        yield line if line.text == text else line.model_copy(update={"text": text})


def read_run_log(row: JsonObject, request: LogsInput, runs: RunsClient, secret_values: Sequence[str]) -> JobLog:
    """Return a part of the run's own log, which counts lines."""
    end = request.before
    if request.tail is not None:
        every = runs.read_log(row["run_id"], 0, end)
        start = max(0, len(every) - request.tail)
        read = every[start:]
    else:
        start = request.offset or 0 if end is None else max(0, end - RUN_LINES)
        read = runs.read_log(row["run_id"], start, RUN_LINES if end is None else end - start)
    lines = tuple(redact_log_lines((LogLine(source=RUN_LOG, **entry) for entry in read), secret_values))
    return JobLog(
        id=row["id"], lines=lines, next_offset={RUN_LOG: start + len(lines)}, first_offset={RUN_LOG: start}
    )  # fmt: skip


def read_logs(source: LogSource, request: LogsInput, context: Context) -> JobLog:
    """Merge the run's log and its trainers' own. With `follow`, report each line as it comes until the job ends."""
    row = source.find_job(request.job, context.caller.tenant)
    reader = LogReader(source, row["run_id"], context.settings)
    lines = list(reader.read())
    lines = lines[-request.tail :] if request.tail else lines if request.tail is None else []
    if request.follow:
        follow(reader, lines, context.on_part)
        return JobLog(id=row["id"], lines=(), streamed=True)
    return JobLog(id=row["id"], lines=(*lines, *reader.rest()) if request.tail is None else tuple(lines))


def follow(reader: LogReader, lines: list[LogLine], report: Callable[[LogLine], None]) -> None:
    while True:
        for line in lines:
            report(line)
        if is_gone(reader.source.find_job(reader.run_id)):
            break
        time.sleep(FOLLOW_EVERY_S)
        lines = list(reader.read())
    for line in (*reader.read(), *reader.rest()):
        report(line)


class LogReader:
    """Lines of a run that are new: of the run itself from the server, of its trainers from their files."""

    def __init__(self, source: LogSource, run_id: str, settings: Settings) -> None:
        self.source = source
        self.run_id, self.folder = run_id, settings.runs / run_id
        self.num_read, self.secret_values = 0, list_secrets(settings)
        self.tails: dict[str, LineTail] = {}
        self.steps: dict[str, StepLog] = {}

    def read(self) -> Iterator[LogLine]:
        return redact_log_lines(self.new_lines(), self.secret_values)

    def rest(self) -> Iterator[LogLine]:
        return redact_log_lines(self.last_lines(), self.secret_values)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the run's new lines, then each trainer's: its output, which carries no time to sort it by, and its
        steps.
        """
        for line in self.source.read_log(self.run_id, self.num_read):
            self.num_read += 1
            yield LogLine(source="run", **line)
        for work in find_training_logs(self.folder):
            tail = self.tails.get(work.node)
            if tail is None or tail.path != work.log:
                tail = self.tails[work.node] = LineTail.at_end(work.log, LAST_BYTES)
                self.steps[work.node] = StepLog(EventTail(work.folder / EVENTS_FILE), work.since)
            yield from (LogLine(source=work.node, text=text) for text in tail.read_texts())
            yield from (LogLine(source=work.node, text=text, time=at) for at, text in self.steps[work.node].read())

    def last_lines(self) -> Iterator[LogLine]:
        for node, tail in self.tails.items():
            yield from (LogLine(source=node, text=text) for text in tail.read_last_texts())
