"""Logs of jobs: the run's own from the server, its trainers' from their files; a part, all, or as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.jobs.log_source import LogSource, choose_source
from trainyard.app.live.manager_jobs import NODE, find_recorded, refuse_steering
from trainyard.app.live.trainings import find_trainings
from trainyard.app.names import find_job
from trainyard.app.responses import Response
from trainyard.app.runs import RunsClient, connect_runs
from trainyard.app.secrets import list_secrets, read_text_before, redact_lines
from trainyard.app.training_logs import LAST_BYTES, StepLog, find_training_logs
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import EventTail
from trainyard.compute.tail import LineSpan, LineTail, find_last_end, read_last_span, read_spans, read_spans_before
from trainyard.errors import NotFound
from trainyard.json_types import JsonObject
from trainyard.operations.jobs import LogsInput
from trainyard.settings import Settings
from trainyard.spec.states import JobState

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
