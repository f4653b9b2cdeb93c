"""Logs of jobs: the run's own from the server, its trainers' from their files; a part, all, or as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from trainyard.app.context import Context
from trainyard.app.jobs.log_source import LogSource, choose_source
from trainyard.app.live.manager_jobs import NODE, find_recorded, refuse_steering
from trainyard.app.live.trainings import trainings_of
from trainyard.app.names import find_job
from trainyard.app.responses import Response
from trainyard.app.runs import RunsClient, connect_runs
from trainyard.app.secrets import known_secrets, redact_lines, text_before
from trainyard.app.training_logs import LAST_BYTES, StepLog, training_logs_of
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


def show_logs(given: LogsInput, context: Context) -> JobLog:
    if find_recorded(given.job, context.settings, context.caller.tenant):
        if given.follow:
            refuse_steering(given.job, context.settings, context.caller.tenant)
        return read_part(given.model_copy(update={"source": given.source or NODE}), context)
    if given.source is not None and not given.follow:
        return read_part(given, context)
    return read_logs(choose_source(context.settings), given, context)


def gone(row: Mapping[str, object]) -> bool:
    return row["pid"] is None and row["state"] in ENDS


def read_part(given: LogsInput, context: Context) -> JobLog:
    """Return a part of one log: whole lines, with every character as it was written, except for secrets.

    From `offset` on; or before `before`, or with `tail` at its end, so that a large log is read from its end.
    Raises `NotFound` (`E-NOT-FOUND`) for a trainer that the job does not have.
    """
    row, _ = find_job(given.job, context)
    source, known = given.source or RUN_LOG, known_secrets(context.settings)
    if source == RUN_LOG and "is_recorded" not in row:
        return read_run_log(row, given, connect_runs(context.settings), known)
    logs = {work.node: work.log for work in trainings_of(row)}
    if source not in logs:
        raise NotFound(
            f"The job {row['name']} has no log of {source!r}.",
            why=f"It has: {', '.join((RUN_LOG, *logs))}.",
            do="Name one of them.",
            code="E-NOT-FOUND",
        )
    path, has_ended = logs[source], row["state"] in ENDS
    if given.before is not None or given.tail is not None:
        return redacted(read_end(row["id"], source, path, given, has_ended=has_ended), known, path)
    size, start = path.stat().st_size if path.is_file() else 0, given.offset or 0
    restarted = start > size
    start = 0 if restarted else start
    read = read_spans(path, start, given.limit_bytes)
    if has_ended and not read:
        read = read_last_span(path, start, given.limit_bytes)
    return redacted(part_of(row["id"], source, read, start, restarted=restarted), known, path)


def read_end(job: str, source: str, path: Path, given: LogsInput, *, has_ended: bool) -> JobLog:
    """Return the last lines before an offset, by default before the end of the file.

    A last line without its end is a line once nobody writes it any more.
    """
    size = path.stat().st_size if path.is_file() else 0
    last = size if has_ended or not size else find_last_end(path, size)
    end = last if given.before is None else min(given.before, last)
    return part_of(job, source, read_spans_before(path, end, given.limit_bytes, given.tail), end)


def part_of(job: str, source: str, read: Sequence[LineSpan], place: int, *, restarted: bool = False) -> JobLog:
    """Lines of one log as a part of it; without lines it is empty at its place."""
    lines = [LogLine(source=source, text=one.data.decode("utf-8", "replace")) for one in read]
    first, end = (read[0].start, read[-1].end) if read else (place, place)
    return JobLog(
        id=job, lines=tuple(lines), next_offset={source: end}, first_offset={source: first}, restarted=restarted
    )  # fmt: skip


def redacted(part: JobLog, known: Sequence[str], path: Path) -> JobLog:
    """Return a part of a log without the secrets that a training or a library has printed."""
    if not part.lines:
        return part
    (first,) = part.first_offset.values()
    return part.model_copy(update={"lines": tuple(redact_lines_of(part.lines, known, text_before(path, first)))})


def redact_lines_of(lines: Iterable[LogLine], known: Sequence[str], before: str = "") -> Iterator[LogLine]:
    given = list(lines)
    texts = redact_lines([line.text for line in given], known, before)
    for line, text in zip(given, texts, strict=True):
        yield line if line.text == text else line.model_copy(update={"text": text})


def read_run_log(row: JsonObject, given: LogsInput, runs: RunsClient, known: Sequence[str]) -> JobLog:
    """Return a part of the run's own log, which counts lines."""
    end = given.before
    if given.tail is not None:
        every = runs.read_log(row["run_id"], 0, end)
        start = max(0, len(every) - given.tail)
        read = every[start:]
    else:
        start = given.offset or 0 if end is None else max(0, end - RUN_LINES)
        read = runs.read_log(row["run_id"], start, RUN_LINES if end is None else end - start)
    lines = tuple(redact_lines_of((LogLine(source=RUN_LOG, **one) for one in read), known))
    return JobLog(
        id=row["id"], lines=lines, next_offset={RUN_LOG: start + len(lines)}, first_offset={RUN_LOG: start}
    )  # fmt: skip


def read_logs(source: LogSource, given: LogsInput, context: Context) -> JobLog:
    """Merge the run's log and its trainers' own. With `follow`, report each line as it comes until the job ends."""
    row = source.find_job(given.job, context.caller.tenant)
    reader = LogReader(source, row["run_id"], context.settings)
    lines = list(reader.read())
    lines = lines[-given.tail :] if given.tail else lines if given.tail is None else []
    if given.follow:
        follow(reader, lines, context.on_part)
        return JobLog(id=row["id"], lines=(), streamed=True)
    return JobLog(id=row["id"], lines=(*lines, *reader.rest()) if given.tail is None else tuple(lines))


def follow(reader: LogReader, lines: list[LogLine], report: Callable[[LogLine], None]) -> None:
    while True:
        for line in lines:
            report(line)
        if gone(reader.source.find_job(reader.run_id)):
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
        self.num_read, self.known = 0, known_secrets(settings)
        self.tails: dict[str, LineTail] = {}
        self.steps: dict[str, StepLog] = {}

    def read(self) -> Iterator[LogLine]:
        return redact_lines_of(self.new_lines(), self.known)

    def rest(self) -> Iterator[LogLine]:
        return redact_lines_of(self.last_lines(), self.known)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the run's new lines, then each trainer's: its output, which carries no time to sort it by, and its
        steps.
        """
        for line in self.source.read_log(self.run_id, self.num_read):
            self.num_read += 1
            yield LogLine(source="run", **line)
        for work in training_logs_of(self.folder):
            tail = self.tails.get(work.node)
            if tail is None or tail.path != work.log:
                tail = self.tails[work.node] = LineTail.at_end(work.log, LAST_BYTES)
                self.steps[work.node] = StepLog(EventTail(work.folder / EVENTS_FILE), work.since)
            yield from (LogLine(source=work.node, text=text) for text in tail.read_texts())
            yield from (LogLine(source=work.node, text=text, time=at) for at, text in self.steps[work.node].read())

    def last_lines(self) -> Iterator[LogLine]:
        for node, tail in self.tails.items():
            yield from (LogLine(source=node, text=text) for text in tail.read_last_texts())
