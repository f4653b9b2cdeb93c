"""The API as a process of its own, as `trainyard serve` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from trainyard.compute.services import free_port
from trainyard.stores.live.job_index import JobIndex

START_S = 240.0
# Workers of one test run search different ranges for a free port, or two of them take the same one.
FIRST_PORT = 20_000
PORTS_PER_WORKER = 200


def first_port() -> int:
    """Return where this worker of the test run (`gw3`) begins its search for a free port."""
    return FIRST_PORT + PORTS_PER_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@contextmanager
def serving(*options: str) -> Iterator[int]:
    """The API as `trainyard serve` starts it; yields its port."""
    port = free_port(first_port())
    argv = [sys.executable, "-m", "trainyard", "serve", "--role", "training", "--port", str(port), *options]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            start_s, printed = time.monotonic(), []
            for line in process.stderr:
                printed.append(line)
                assert time.monotonic() - start_s < START_S
                if "answers at" in line:
                    break
            else:
                raise AssertionError(f"the service ended: {process.wait()}\n{''.join(printed)}")
            yield port
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def keep_in_step(index: JobIndex) -> Iterator[None]:
    """Say each second, in the place of Prefect, that the index is in step."""
    stop = Event()

    def work() -> None:
        while True:
            index.note_try(time.time())
            index.note_success(time.time())
            if stop.wait(1.0):
                return

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
