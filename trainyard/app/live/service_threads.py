"""Background threads of a service, which keep its answers ready.

Whether a worker takes runs, for `/health`: looked at in a thread of its own, at most once in five seconds.

Asked over HTTP and not by Prefect's client, whose import takes seconds: an unused service has not done it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from threading import Event, Lock, Thread

import httpx

from trainyard.app.runs import connect_runs
from trainyard.app.services import api_url, is_own, running, worker_name
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.stores.auth_string import CLIENT_VARIABLE, auth_header, read_auth
from trainyard.stores.ledger.audit_stream import EVERY_S, commit_audit
from trainyard.stores.ledger.log import Ledger

RETRY_S = 2.0
"""Between two looks for a Prefect server that is not there yet."""
LEAVING_S = 10.0


@contextmanager
def keep_live(settings: Settings, say: Callable[[str], None]) -> Iterator[Event]:
    """Keep the index of jobs in step with Prefect, from the moment that the yielded event is set to the block's end.

    A service sets it at its first request: importing Prefect takes seconds of a core.
    """
    begin, stop = Event(), Event()
    thread = Thread(target=keep_index, args=(settings, begin, stop, say), name="index of jobs", daemon=True)
    thread.start()
    try:
        yield begin
    finally:
        stop.set()
        begin.set()
        thread.join(LEAVING_S)


@contextmanager
def keep_audited(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """Let the ledger name the newest line of the audit log once a minute, and at the end of the block."""
    stop = Event()

    def commit() -> None:
        try:
            commit_audit(Ledger.at_home(settings.home))
        except (OSError, TrainyardError) as error:
            say(f"the audit log is not in the ledger: {error}")

    def commit_each_minute() -> None:
        while not stop.wait(EVERY_S):
            commit()

    thread = Thread(target=commit_each_minute, name="audit stream", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LEAVING_S)
        commit()


def keep_index(settings: Settings, begin: Event, stop: Event, say: Callable[[str], None]) -> None:
    """Synchronise until `stop` is set; wait for a server that is not there."""
    begin.wait()
    runs = None
    while runs is None and not stop.is_set():
        try:
            runs = connect_runs(settings)
        except TrainyardError:
            stop.wait(RETRY_S)
    if runs is not None:
        runs.synchronize_jobs(say, stop)


FRESH_S, KNOWN_S = 5.0, 30.0
"""How old an answer may be before Prefect is asked again, and before it is not given any more."""
WAIT_S = 0.25
"""How long a caller waits for a look."""
TIMEOUT_S = 2.0


class WorkerState(StrEnum):
    """State of the worker of this home's pool."""

    RUNNING = "running"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    """Prefect does not answer."""


class WorkerWatch:
    """The state of the worker as it was a moment ago."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.lock = settings, Lock()
        self.worker_state, self.looked = WorkerState.UNKNOWN, float("-inf")
        self.thread: Thread | None = None

    def state(self) -> WorkerState:
        """Return the last finding; waits a quarter of a second for a look where that is old."""
        if self.age() > FRESH_S:
            self.begin_look().join(WAIT_S)
        return self.worker_state if self.age() <= KNOWN_S else WorkerState.UNKNOWN

    def age(self) -> float:
        return time.monotonic() - self.looked

    def begin_look(self) -> Thread:
        """Start a look, or return the one that is under way."""
        with self.lock:
            if self.thread is None or not self.thread.is_alive():
                self.thread = Thread(target=self.look, name="look for a worker", daemon=True)
                self.thread.start()
            return self.thread

    def look(self) -> None:
        self.worker_state = find_worker(self.settings)
        self.looked = time.monotonic()


def find_worker(settings: Settings) -> WorkerState:
    """Return whether a worker takes runs: this home's by its process, any other by its heartbeat."""
    url = api_url(settings)
    workers = None if url is None else read_workers(settings, url)
    if workers is None:
        return WorkerState.UNKNOWN
    if running(settings, "worker") is not None:
        return WorkerState.RUNNING
    own_name = worker_name(settings)
    other_workers = [
        worker for worker in workers if worker.get("name") != own_name and worker.get("status") == "ONLINE"
    ]
    return WorkerState.RUNNING if other_workers else WorkerState.ABSENT


def read_workers(settings: Settings, url: str) -> list[dict[str, object]] | None:
    """Return the workers of the pool; None where the server does not answer, or refuses the credentials."""
    auth = read_auth(settings) if is_own(settings, url) else os.environ.get(CLIENT_VARIABLE)
    address, is_plain = f"{url}/work_pools/{settings.work_pool}/workers/filter", url.startswith("http://")
    try:
        answer = httpx.post(address, json={}, headers=auth_header(auth), timeout=TIMEOUT_S, verify=not is_plain)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        body = answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None
    return body if isinstance(body, list) else None
