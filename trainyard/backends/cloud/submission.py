"""One remote job for each run key, followed to its end.

A request that creates a paid job is sent once. Where its reply is lost, the provider's own list is read until it shows
the job, and only a list that stays without it for `settle_s` allows another request. The journal is written before the
request, so a process that is killed at any moment leaves a successor that looks first. A state that is not known here,
an answer of 5xx or 429 and a lost connection change nothing: the job is asked for again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from trainyard.backends.cloud.contract import (
    CloudRequest,
    EventPage,
    Provider,
    ProviderState,
    RemoteEvent,
    RemoteJob,
    UploadedRows,
    make_run_key,
)
from trainyard.backends.cloud.errors import ProviderError
from trainyard.backends.cloud.journal import JOURNAL_FILE
from trainyard.compute.child import EVENTS_FILE, Stopped, faultpoint
from trainyard.compute.events import read_events
from trainyard.json_types import JsonObject
from trainyard.stores.whole import write_json_durably

POLL_S = 30.0
SLOWEST_POLL_S = 300.0
BACKOFF = 1.5
SETTLE_S = 90.0
"""How long a list has to stay without a job before its creation is tried again: longer than a request may take."""
LOOKS = 3
"""Lists that have to agree."""
MOST_CREATES = 5
VANISHED_LOOKS = 5
PATIENCE_S = 3600.0
"""How long a provider may not answer before the job is left to a later start."""
QUIET_TRIES = 3
"""Calls without an answer before the log says so."""
CANCEL_WAIT_S = 120.0


@dataclass(frozen=True)
class PollPace:
    """Intervals of a submission; tests use shorter ones."""

    poll_s: float = POLL_S
    settle_s: float = SETTLE_S
    patience_s: float = PATIENCE_S
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic


@dataclass
class Submission:
    """The job of a training at its provider."""

    provider: Provider
    work_name: str
    folder: Path
    emit: Callable[..., None]
    pace: PollPace = field(default_factory=PollPace)
    stop_reason: Callable[[], str] = str
    """Why the training was asked to stop; empty while it was not."""

    def __post_init__(self) -> None:
        self.path = self.folder / JOURNAL_FILE
        self.journal: JsonObject = orjson.loads(self.path.read_bytes()) if self.path.is_file() else {"attempt": 1}
        earlier = list(read_events(self.folder / EVENTS_FILE)) if (self.folder / EVENTS_FILE).is_file() else []
        self.seen = {str(event["remote_id"]) for event in earlier if event.get("remote_id")}
        self.charged = {str(event["job"]) for event in earlier if event["event"] in ("cost", "usage")}
        stated = [float(event["amount_usd"]) for event in earlier if event["event"] == "cost"]
        self.spent_usd = stated[-1] if stated else 0.0
        """Sum of the provider's statements on every attempt, by the event log alone."""
        self.word = ""
        self.is_answered = "job" in self.journal or "files" in self.journal
        """Whether the provider has answered: a host without an address is then one that is lost for a while."""

    @property
    def run_key(self) -> str:
        return make_run_key(self.work_name, int(self.journal["attempt"]))

    def note(self, **values: Any) -> None:
        """Write the journal, whole and durable."""
        self.journal |= values
        write_json_durably(self.path, self.journal)

    # Upload and creation

    def upload(self, name: str, path: Path) -> str:
        """Upload a file of rows once, and return the provider's name for it."""
        files = dict(self.journal.get("files") or {})
        if name not in files:
            files[name] = self.persist(lambda: self.provider.upload(path, f"{self.run_key}-{name}.jsonl"))
            self.note(files=files)
            self.emit("uploaded", file=files[name], bytes=path.stat().st_size)
        return str(files[name])

    def submit(self, request: CloudRequest, rows: UploadedRows) -> RemoteJob:
        """Return the remote job of this training, created if the provider has none. Raises `ProviderError`."""
        if "job" in self.journal:
            return self.read(str(self.journal["job"]))
        last = ""
        for _ in range(MOST_CREATES):
            # A request was sent whose reply was not noted: a list may not show its job yet.
            if (job := self.reconcile() if self.journal.get("creating") else self.find()) is not None:
                return self.adopt(job)
            self.require_not_stopped()
            self.note(creating=True)
            faultpoint("provider.creating")
            try:
                job = self.provider.create(request, rows)
            except ProviderError as error:
                if error.is_refusal:
                    self.note(creating=False)
                    raise
                self.emit("warning", text=f"The reply to the submission is lost: {error.what} Looking for the job.")
                last = f" Its last answer: {error.what} {error.why}".rstrip()
                continue
            faultpoint("provider.created")
            return self.adopt(job)
        raise ProviderError(
            f"The provider did not confirm the job in {MOST_CREATES} attempts.",
            why=f"Its list has no job of {self.run_key}.{last}",
            do="Start the job again later: it looks in the list first.",
        )

    def adopt(self, job: RemoteJob) -> RemoteJob:
        self.note(job=job.id, creating=False)
        self.emit("submitted", job=job.id, run_key=self.run_key, text=f"The provider's job is {job.id}.")
        return job

    def find(self) -> RemoteJob | None:
        """Return the job of this run key in the provider's list; the first of several, which are reported."""
        jobs = self.persist(lambda: self.provider.find(self.run_key))
        if len(jobs) > 1:
            self.emit("warning", text=f"The provider has {len(jobs)} jobs of {self.run_key}; {jobs[0].id} is followed.")
        return jobs[0] if jobs else None

    def reconcile(self) -> RemoteJob | None:
        """Read the list until it shows the job, or has stayed without it long enough."""
        started, looks = self.pace.now(), 0
        while True:
            if (job := self.find()) is not None:
                return job
            looks += 1
            if looks >= LOOKS and self.pace.now() - started >= self.pace.settle_s:
                return None
            self.pace.sleep(max(self.pace.settle_s / LOOKS, 0.001))

    # Following

    def follow(self, job: RemoteJob) -> RemoteJob:
        """Poll a job to its end, and hand its events on. Raises `Stopped`, and `ProviderError` for a failed one."""
        wait = self.pace.poll_s
        while True:
            before = self.word
            self.report(job)
            self.copy_events(job)
            if job.state.over:
                break
            self.stop_if_asked(job)
            wait = self.pace.poll_s if job.word != before else min(wait * BACKOFF, max(SLOWEST_POLL_S, wait))
            self.wait(wait)
            job = self.read(job.id)
        self.charge(job)
        self.close(job)
        if job.state is not ProviderState.DONE:
            raise ProviderError(
                f"The provider's job {job.id} is {job.word}.", why=job.message,
                do="Correct what it reports. A job that is started again is a new one there.",
            )  # fmt: skip
        return job

    def close(self, job: RemoteJob) -> None:
        """Note that a remote job is over. After one without a result the next submission is a new one."""
        if job.state is ProviderState.DONE:
            self.note(over=True)
            return
        self.journal.pop("job", None)
        ended = [*self.journal.get("ended", []), job.id]
        self.note(attempt=int(self.journal["attempt"]) + 1, creating=False, ended=ended)

    def read(self, job_id: str) -> RemoteJob:
        return self.ask(job_id, lambda: self.provider.read(job_id))

    def ask(self, job_id: str, call: Callable[[], Any]) -> Any:
        """Return the result of a call about a job, which may be missing for a while. Raises `ProviderError`."""
        for look in range(VANISHED_LOOKS):
            try:
                return self.persist(call)
            except ProviderError as error:
                if error.status != 404:
                    raise
                if look + 1 == VANISHED_LOOKS:
                    raise vanished(job_id, error) from error
            self.pace.sleep(self.pace.poll_s)
        raise AssertionError("the last look raises")

    def report(self, job: RemoteJob) -> None:
        """Emit a change of the provider's state, in its own word."""
        if job.word == self.word:
            return
        self.word = job.word
        unknown = " (a state that this version does not know)" if job.state is ProviderState.UNKNOWN else ""
        self.emit("remote_state", job=job.id, state=job.state.value, word=job.word, text=f"{job.word}{unknown}")

    def copy_events(self, job: RemoteJob) -> None:
        """Hand on every event that is not in our file yet."""
        for event in self.read_new_events(job.id):
            key = f"{job.id}/{event.id}"
            self.seen.add(key)
            self.emit("remote", remote_id=key, text=event.text, at=event.at)
            if "step" in event.progress:
                self.emit("progress", **{**event.progress, "step": int(event.progress["step"])})

    def read_new_events(self, job_id: str) -> list[RemoteEvent]:
        """Return the events that are not in our file, the oldest first: pages backwards until one that is."""
        pages: list[list[RemoteEvent]] = []
        cursor = ""
        while True:
            page: EventPage = self.ask(job_id, partial(self.provider.read_events, job_id, cursor))
            pages.append([event for event in page.events if f"{job_id}/{event.id}" not in self.seen])
            cursor = page.before
            if not cursor or len(pages[-1]) < len(page.events):
                return [event for page_events in reversed(pages) for event in page_events]

    def charge(self, job: RemoteJob) -> None:
        """Emit once the provider's statement on a job that is over: `cost` of all attempts, or `usage` in tokens."""
        if job.id in self.charged:
            return
        self.charged.add(job.id)
        if job.cost_usd is not None:
            self.spent_usd = round(self.spent_usd + job.cost_usd, 6)
            self.emit("cost", amount_usd=self.spent_usd, tokens=job.tokens, source="provider", job=job.id)
        elif job.tokens is not None:
            self.emit("usage", tokens=job.tokens, source="provider", job=job.id)

    def stop_if_asked(self, job: RemoteJob) -> None:
        """Cancel the remote job where this one is cancelled or over its budget; else leave it, and say so."""
        reason = self.stop_reason()
        if not reason:
            return
        if reason in ("cancel", "budget"):
            self.persist(lambda: self.cancel(job.id))
            deadline = self.pace.now() + CANCEL_WAIT_S
            while not job.state.over and self.pace.now() < deadline:
                self.pace.sleep(min(self.pace.poll_s, 5.0))
                job = self.read(job.id)
                self.report(job)
            if job.state.over:
                self.charge(job)
                self.close(job)
            raise Stopped(reason)
        self.emit(
            "warning", text=f"The provider's job {job.id} continues; resume follows it, cancel after that ends it."
        )
        raise Stopped(reason)

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job; one that has ended already is left alone."""
        try:
            self.provider.cancel(job_id)
        except ProviderError as error:
            if error.status not in (400, 404, 409):
                raise

    def end_if_asked(self) -> None:
        """Cancel the remote job of an earlier start where the training is to end. Raises `Stopped` then."""
        if self.stop_reason() in ("cancel", "budget"):
            if job_id := self.journal.get("job"):
                self.stop_if_asked(self.read(str(job_id)))
            elif self.journal.get("creating") and (job := self.reconcile()) is not None:
                self.stop_if_asked(self.adopt(job))
        self.require_not_stopped()

    def require_not_stopped(self) -> None:
        if reason := self.stop_reason():
            raise Stopped(reason)

    def wait(self, seconds: float) -> None:
        """Sleep, and look every second whether the training was asked to stop."""
        end = self.pace.now() + seconds
        while (left := end - self.pace.now()) > 0 and not self.stop_reason():
            self.pace.sleep(min(left, 1.0))

    def persist(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call that may be repeated; 429, 5xx and lost connections are waited for."""
        started, wait, tries = self.pace.now(), self.pace.poll_s / 10, 0
        while True:
            try:
                result = call()
            except ProviderError as error:
                is_elsewhere = error.is_unresolved and not self.is_answered
                if error.is_refusal or is_elsewhere or self.pace.now() - started > self.pace.patience_s:
                    raise
                tries += 1
                if tries == QUIET_TRIES:
                    self.emit("warning", text=f"{error.what} {error.why} It is asked again for an hour.")
                self.pace.sleep(wait * random.uniform(0.5, 1.0))  # accounts are shared: not all at once
                wait = min(wait * 2, SLOWEST_POLL_S)
            else:
                self.is_answered = True
                return result


def vanished(job_id: str, error: ProviderError) -> ProviderError:
    """Return the error of a job that the provider does not have any more."""
    return ProviderError(
        f"The provider has no job {job_id} any more.", why=error.why,
        do="Look at the provider's console. Nothing is submitted again automatically; start a new job for another try.",
    )  # fmt: skip
