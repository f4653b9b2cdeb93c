"""Operations whose cost depends on the content of the request, each in a child process with limits of memory and time.

    service ──request──▶ child (a fork of a process in which everything is imported) ──parts, result──▶ service

A chain of a few kilobytes may take seconds to check, and a row of a data set may be anything: what a stranger sends
costs a child, never the process that answers everybody. The child ends when its caller leaves. One caller has two
children at a time and some requests that wait; beyond them it gets 429 and when to ask again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from trainyard.app.access.limits import HEAVY_S, TooMany
from trainyard.app.context import Context
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import KILLED_BY_TIME, die_with_parent, limit, limit_memory
from trainyard.surfaces.invocation import work

LOG = logging.getLogger("trainyard.rest")
MEMORY_BYTES = 3 << 30
"""Address space of a child beyond what it has when it starts."""
CPU_S = {
    "check": 20, "chains expand": 30, "chains links": 20, "plan": 60, "scripts draft": 60, "data preview": 300,
    "data columns": 60,
}  # fmt: skip
WAIT_S = 30.0
"""How long a request waits for a place."""
MOST_OF_CALLER = 2
"""Children of one caller at a time."""
MOST_WAITING_OF_CALLER, MOST_WAITING = 4, 12
"""Requests that wait for a place: those of one caller, and all."""
SMALL_BYTES = 64 << 10
MOST_SMALL_OF_CALLER, MOST_SMALL = 12, 16
"""The same for a request of at most `SMALL_BYTES`, as an editor sends with each change: it costs one thread."""
PRELOADED = (
    "trainyard.surfaces.access.confined_calls", "trainyard.app.plan.check", "trainyard.app.plan.plan",
    "trainyard.app.chains.drafts", "trainyard.app.scripts", "trainyard.app.reach",
    "trainyard.app.secrets",
    "pyarrow", "transformers", "trainyard.app.plan.samples", "trainyard.app.plan.row_fit",
    "trainyard.data.generation.generate", "trainyard.data.validation",
)  # fmt: skip
"""Imports of the process from which children are forked."""
MEMORY_EXIT = 70


@dataclass
class CallSlots:
    """Queue of child processes: some children at a time, few of them for one caller."""

    most: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    working: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def reserve_slot(self, context: Context) -> Iterator[None]:
        """A place for one call, for which it may have to wait. Raises `TooMany` (`E-RATE`), `CallerLeft`."""
        caller = context.caller.identity
        with self.changed:
            self.wait_for_slot(caller, context)
            self.working[caller] += 1
        try:
            yield
        finally:
            with self.changed:
                self.working[caller] -= 1
                self.working += Counter()  # without those of zero
                self.changed.notify_all()

    def wait_for_slot(self, caller: str, context: Context) -> None:
        def is_free() -> bool:
            return self.working[caller] < MOST_OF_CALLER and self.working.total() < self.most

        if is_free():
            return
        is_small = context.request_bytes is not None and context.request_bytes <= SMALL_BYTES
        of_caller, of_all = (MOST_SMALL_OF_CALLER, MOST_SMALL) if is_small else (MOST_WAITING_OF_CALLER, MOST_WAITING)
        if self.waiting[caller] >= of_caller or self.waiting.total() >= of_all:
            raise TooMany(f"{context.caller.name} has too many requests of this kind open.", HEAVY_S)
        self.waiting[caller] += 1
        context.departure.on_leaving(self.wake)
        try:
            if not self.changed.wait_for(lambda: is_free() or context.departure.has_left, WAIT_S):
                raise TooMany(f"No place was free within {WAIT_S:g} s.", HEAVY_S)
            context.departure.require_caller()
        finally:
            context.departure.forget(self.wake)
            self.waiting[caller] -= 1

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


class ChildCalls:
    """Carries out confined operations in children of this process."""

    def __init__(self, most: int) -> None:
        """`most` children at a time."""
        self.slots = CallSlots(most)
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(list(PRELOADED))

    def run_operation(self, name: str, request: Any, context: Context) -> Any:
        """Return the response of an operation.

        Raises what it raises, `TooMany` (`E-RATE`), `LimitExceeded` (`E-LIMIT`) for one that took too much, and
        `CallerLeft`.
        """
        context.departure.require_caller()
        with self.slots.reserve_slot(context):
            receiver, childs = self.processes.Pipe(duplex=False)
            sent = facts_for_child(context)
            child = self.processes.Process(target=perform, args=(childs, name, request, sent), daemon=True)
            with receiver:
                try:
                    child.start()
                finally:
                    childs.close()
                context.departure.on_leaving(child.kill)
                try:
                    return receive_result(child, receiver, name, context)
                finally:
                    context.departure.forget(child.kill)
                    child.kill()
                    child.join()
                    child.close()


def facts_for_child(context: Context) -> dict[str, object]:
    """Return what a child needs of a context."""
    names = ("settings", "caller", "idempotency_key", "surface", "trace")
    return {name: getattr(context, name) for name in names}


def receive_result(child: ForkServerProcess, receiver: Connection, name: str, context: Context) -> Any:
    """Report what a child says until it has the result. Raises the error that it met, or that of its limit."""
    callbacks: dict[str, Callable[[Any], None]] = {
        "say": context.say,
        "event": context.on_progress,
        "part": context.on_part,
    }
    try:
        while True:
            kind, value = receiver.recv()
            if kind == "result":
                return value
            if kind == "error":
                raise value
            callbacks[kind](value)
    except (EOFError, ConnectionResetError):
        child.join()
    context.departure.require_caller()
    code = child.exitcode
    if code is not None and (-code in KILLED_BY_TIME or code == MEMORY_EXIT):
        limit_text = f"{MEMORY_BYTES >> 20:,} MiB of memory" if code == MEMORY_EXIT else f"{CPU_S[name]} s of CPU time"
        raise LimitExceeded(
            f"{name} took more than {limit_text}.", why="Over a network a request may cost that much.",
            do="Send less at a time, or ask on the machine itself.", code="E-LIMIT",
        )  # fmt: skip
    LOG.error("the child of %s ended with %s", name, code)
    raise TrainyardError(f"{name} was ended ({code}).", do="The log of the service may say why.", code="E-BUG")


def perform(out: Connection, name: str, request: Any, fields: JsonObject) -> None:
    """Carry an operation out and send what it reports; runs in the child."""
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    limit(resource.RLIMIT_CORE, 0)
    limit_cpu(CPU_S[name])
    limit_memory(MEMORY_BYTES)

    def send(kind: str, value: Any) -> None:
        out.send((kind, value))

    context = Context(
        **fields, say=partial(send, "say"), on_progress=partial(send, "event"), on_part=partial(send, "part")
    )
    try:
        send("result", work(name, request, context))
    except TrainyardError as error:
        send("error", error)
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except BrokenPipeError:
        os._exit(0)  # no process is left that could read it


def limit_cpu(seconds: int) -> None:
    """End this process after so many seconds of CPU time of all its threads."""
    used = time.process_time()
    limit(resource.RLIMIT_CPU, int(used) + seconds + 1)
