"""The parent's side of reading: the one place through which files, folders and repositories of strangers are read.

    with reading_service() as service:
        result = service.read_set(SetRequest(...), report)

A service is a process from which limited ones are forked (`server.py`). Starting it costs what importing the readers
costs, a request a few milliseconds, so one that is open is used by everything below it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from subprocess import TimeoutExpired
from typing import cast

import msgspec

from trainyard.data.limited import requests
from trainyard.data.limited.requests import (
    ParsedItem,
    ParseItem,
    Request,
    Result,
    TooLong,
    describe_end,
    read_frames,
    unpack_error,
    write_frame,
)
from trainyard.errors import LimitExceeded, TrainyardError, Unavailable
from trainyard.sandbox.children import PipedChild

Report = Callable[[float, str], None]
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "HOME", "VIRTUAL_ENV", "PYTHONPATH",
             "TRAINYARD_HOME", "TRAINYARD_DATA_ROOTS")  # fmt: skip
"""The variables that a reading process gets: where things are, and nothing that is a secret."""
OWN = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
       "MALLOC_MMAP_THRESHOLD_": str(256 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
       "MALLOC_TOP_PAD_": str(16 << 20)}  # fmt: skip
"""One thread, because it forks; the C library's allocator, because the others reserve address space in advance. That
allocator keeps what is freed: to give each column back to the kernel and fetch it again takes 8 % of the time of a set.
"""
MOST_ANSWER_BYTES = 1 << 30
"""The tuples of 20,000 commits are one answer."""
MOST_ITEM_BYTES, MOST_ITEMS = 16 << 20, 10_000
"""Of one request to parse items; a larger item is a request of its own."""
END_S = 5.0
UNSEALED = "this system cannot refuse connections to reading processes; other limits are in force"
LOGGER = logging.getLogger("trainyard.data")


class ReadingService(PipedChild):
    """A running server of reading processes. A context manager; requests of concurrent threads wait for each other."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", "trainyard.data.limited.server"]
        super().__init__(command, reading_environment, errors=None, grace_s=END_S)
        self.sealed = True
        """Whether the kernel refuses connections to its processes."""
        self.answers: Iterator[bytes] = iter(())
        self.lock = threading.Lock()

    def __enter__(self) -> ReadingService:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; it answers before the first request when its imports are done."""
        self.open()
        self.answers = read_frames(self.pipes[1].fileno(), MOST_ANSWER_BYTES)

    def read_set(self, request: requests.SetRequest, report: Report) -> requests.SetReadResult:
        """Read a set into the request's folder. Raises what reading raises, and what `breach` says of a limit."""
        return cast(requests.SetReadResult, self.ask(request, report))

    def read_commits(self, request: requests.CommitsRequest) -> requests.CommitsResult:
        """Read the tuples of a repository."""
        return cast(requests.CommitsResult, self.ask(request))

    def read_columns(self, request: requests.ColumnsRequest) -> requests.ColumnsResult:
        """Read the columns of the first rows of a file. Raises `InvalidInput` (`E-DATA-UNREADABLE`) for none."""
        return cast(requests.ColumnsResult, self.ask(request))

    def parse(self, request: requests.ParseRequest) -> list[ParsedItem]:
        """Parse bytes that the caller has read; one result for each item, in order."""
        return cast(list[ParsedItem], self.ask(request))

    def ask(self, request: Request, report: Report = lambda fraction, text: None) -> Result:
        """Send a request and take its answers until its process has ended."""
        with self.lock:
            if not self.alive:
                self.start()
            write_frame(self.pipes[0].fileno(), pickle.dumps(request))
            result: Result | None = None
            error: TrainyardError | None = None
            try:
                for answer in map(requests.ANSWER_DECODER.decode, self.answers):
                    if answer.fraction is not None:
                        report(answer.fraction, answer.text)
                    elif answer.error is not None:
                        if answer.error.trace:
                            LOGGER.error(answer.error.trace)
                        error = unpack_error(answer.error)
                    elif answer.ready is not None:
                        self.sealed = answer.ready
                        if not self.sealed:
                            LOGGER.warning(UNSEALED)
                    elif answer.ended is not None:
                        return outcome(request, result, error, answer.ended)
                    else:
                        result = answer.result
            except (msgspec.DecodeError, TooLong):
                self.stop()  # what follows may be what a hostile file made its reader send
        raise self.ended()

    def ended(self) -> Unavailable:
        """Return the error of a process that is gone in the middle of a request, by how it ended."""
        code = None
        with contextlib.suppress(TimeoutExpired):
            code = self.process.wait(END_S) if self.process is not None else None  # its pipe is closed
        if code is None or code < 0:
            why, do = "Its process was ended from outside, perhaps for the machine's memory.", "Start the run again."
        else:
            why, do = f"Its process ended with exit code {code}.", "Read its last lines on the error output."
        return Unavailable("The reading service ended while it read.", why=why, do=do, code="E-DATA-UNREADABLE")


def outcome(request: Request, result: Result | None, error: TrainyardError | None, status: int) -> Result:
    """Return the result of a request whose process has ended. Raises the error that it met, or that of its limit."""
    if error is not None:
        raise error
    ended = describe_end(status)
    if result is not None and ended is None:
        return result
    reason, detail = ended or ("reader_crashed", "its reader ended without a result")
    if reason == "time_limit":
        raise LimitExceeded(
            f"{request.label} took too long to read.",
            why=f"A piece of it took more than {request.limits.chunk_cpu_s:g} s of CPU time.",
            do="Look at the file; nothing of an honest one takes so long.", code="E-DATA-LIMIT",
        )  # fmt: skip
    raise LimitExceeded(
        f"{request.label} was not read to its end.", why=f"While it was read, {detail}.",
        do="Look at the file: it may be damaged or made to do harm. If it is right, report it.",
        code="E-DATA-UNREADABLE",
    )  # fmt: skip


def reading_environment() -> dict[str, str]:
    """Return the whole environment of a reading process."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**passed, **OWN, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


_open_service: ContextVar[ReadingService | None] = ContextVar("reading service", default=None)


@contextlib.contextmanager
def reading_service() -> Iterator[ReadingService]:
    """The service that is kept open in this context, else one that ends with this block."""
    current = _open_service.get()
    if current is not None:
        yield current
        return
    with ReadingService() as service:
        yield service


@contextlib.contextmanager
def keep_service(offered: ReadingService | None = None) -> Iterator[ReadingService]:
    """Keep one service open for every `reading_service` of this context meanwhile; its first request starts it.

    Other threads have their own, so that nobody waits for the slow file of somebody else; one that works for this block
    runs in a copy of its context.
    """
    current = _open_service.get()
    if current is not None:
        yield current
        return
    service = offered or ReadingService()
    _open_service.set(service)
    try:
        yield service
    finally:
        _open_service.set(None)
        service.stop()


def parse_limited(items: Sequence[ParseItem]) -> list[ParsedItem]:
    """`requests.Parse` in limited children. An item that goes over a limit is unreadable, and the others are parsed.

    Raises `LimitExceeded` (`E-DATA-UNREADABLE`) when very many of them do.
    """
    if not items:
        return []
    with reading_service() as service:
        return [item for batch in batches(items) for item in service.parse(requests.ParseRequest(batch))]


def batches(items: Sequence[ParseItem]) -> Iterator[list[ParseItem]]:
    """Yield the items in their order, in lists that fit into a request."""
    batch: list[ParseItem] = []
    size = 0
    for item in items:
        if batch and (size + len(item.data) > MOST_ITEM_BYTES or len(batch) >= MOST_ITEMS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.data)
    yield batch
