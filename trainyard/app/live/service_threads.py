"""Background threads of a service, which keep its answers ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from trainyard.app.runs import connect_runs
from trainyard.errors import TrainyardError
from trainyard.settings import Settings

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
