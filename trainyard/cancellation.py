"""Callers that leave before they have their answer, and the work that then ends.

What only makes an answer is of no use without its caller. The surface that carries it out binds the caller's
`Departure` to the thread; what loops over rows, files, runs or bytes calls `require_caller` between two of them, and
what waits for a server or a process registers how the wait is ended:

    for block in blocks:            with ended_on_leaving(process.kill):      httpx.Client(event_hooks=CALLER_HOOKS)
        require_caller()                process.wait()

Where nothing is bound, in a child or on the command line, neither does anything.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from trainyard.json_types import JsonMapping

Item = TypeVar("Item")


class CallerLeft(BaseException):
    """The caller has left: the result or error has no reader.

    Like `asyncio.CancelledError` it is not an `Exception`, so that no handler on its way takes it for a failure.
    """


class Departure:
    """Departure of a caller; work for it registers how it is ended."""

    def __init__(self) -> None:
        self.lock, self.has_left = threading.Lock(), False
        self.ends: list[Callable[[], None]] = []

    def note(self) -> None:
        """Say that the caller has left, and end what works for it."""
        with self.lock:
            self.has_left, ends = True, self.ends
            self.ends = []
        for end in ends:
            end()

    def on_leaving(self, end: Callable[[], None]) -> None:
        """Call `end` when the caller leaves, at once if it has left."""
        with self.lock:
            if not self.has_left:
                return self.ends.append(end)
        end()

    def forget(self, end: Callable[[], None]) -> None:
        """Do not call `end` any more."""
        with self.lock, suppress(ValueError):  # it was called
            self.ends.remove(end)

    def require_caller(self) -> None:
        """Raises `CallerLeft` once the caller has left."""
        if self.has_left:
            raise CallerLeft


BOUND: ContextVar[Departure | None] = ContextVar("caller_departure", default=None)
"""Of the caller for whom this thread works."""


@contextmanager
def bind_departure(departure: Departure | None) -> Iterator[None]:
    """Work for a caller; for none, whose leaving ends nothing, with None.

    Raises `CallerLeft` also for what failed because a connection or a process was ended.
    """
    token = BOUND.set(departure)
    try:
        yield
    except Exception as error:
        if departure is not None and departure.has_left:
            raise CallerLeft from error
        raise
    finally:
        BOUND.reset(token)


def require_caller() -> None:
    """Raises `CallerLeft` once the caller for whom this thread works has left."""
    departure = BOUND.get()
    if departure is not None and departure.has_left:
        raise CallerLeft


def iterate_until_departure(items: Iterable[Item]) -> Iterator[Item]:
    """The items, until the caller has left. Raises `CallerLeft`."""
    for item in items:
        require_caller()
        yield item


@contextmanager
def end_on_leaving(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` from another thread if the caller leaves within the block. Raises `CallerLeft` after it has."""
    departure = BOUND.get()
    if departure is None:
        yield
        return
    departure.on_leaving(end)
    try:
        yield
    except Exception as error:
        if departure.has_left:  # it failed because it was ended
            raise CallerLeft from error
        raise
    finally:
        departure.forget(end)
    departure.require_caller()


def run_process(argv: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]) -> bytes:
    """What a process prints; it ends with its caller. Raises `OSError`, `subprocess.SubprocessError`, `CallerLeft`."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment, **pipes) as process, end_on_leaving(process.kill):
        try:
            printed, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv, printed, errors)
    return printed


def watch_request(request: Any) -> None:
    """Event hook of an httpx client: a request does not begin without its caller, and its connection ends with it."""
    departure = BOUND.get()
    if departure is None:
        return
    departure.require_caller()

    def note_connection(event: str, info: JsonMapping) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            departure.on_leaving(make_closer(info["return_value"].get_extra_info("socket")))
        elif event.endswith(".failed") and not isinstance(info.get("exception"), GeneratorExit):
            departure.require_caller()  # so that a client does not try again; a stream that is closed may not raise

    request.extensions["trace"] = note_connection


CALLER_HOOKS: dict[str, list[Callable[..., object]]] = {"request": [watch_request]}
"""For `httpx.Client(event_hooks=)`, of a client that lives as long as one call."""


def make_closer(connection: socket.socket) -> Callable[[], None]:
    """Return what makes every wait for a connection's bytes return at once, in whatever thread it is."""

    def end() -> None:
        with suppress(OSError):  # it is closed already
            connection.shutdown(socket.SHUT_RDWR)

    return end
