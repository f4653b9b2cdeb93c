"""The trusted side of the sandbox: it starts one for a batch of completions, and asks it about each of them.

How far the operating system confines code is tried, not guessed: namespaces first, then Landlock with seccomp. Where
neither works no code runs, unless the setting `allow_unconfined_code` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from trainyard.errors import Unavailable
from trainyard.json_types import JsonObject
from trainyard.sandbox.children import PipedChild
from trainyard.sandbox.wire import MOST_BYTES, Closed, read_message, write_message
from trainyard.sandbox.zygote import CODE, LANDLOCK, NAMESPACES, NONE, SCHEMA
from trainyard.settings import settings

PROGRAM = "import sys; sys.path.insert(0, {root!r}); from trainyard.sandbox.zygote import main; main()"
SOURCE = Path(__file__).parents[2]
START_S, ANSWER_S = 60.0, 60.0
"""How long a busy machine may take to start the program, and to answer beyond the time of a request."""
PRINTED_CHARS = 4096


class Confinement(StrEnum):
    """Confinement of code by the operating system."""

    NAMESPACES = NAMESPACES
    LANDLOCK = LANDLOCK
    NONE = NONE

    @property
    def detail(self) -> str:
        return {
            Confinement.NAMESPACES: "user, mount, pid and network namespaces with seccomp",
            Confinement.LANDLOCK: "Landlock with seccomp; this system allows no user namespaces",
            Confinement.NONE: "none: code of completions does not run",
        }[self]


@dataclass(frozen=True)
class CodeOutcome:
    """Outcome of a request."""

    verdict: str
    printed: str
    """The last 4,096 characters."""

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


class Sandbox(PipedChild):
    """A program under one confinement, which starts with its first request. Thread-safe."""

    def __init__(self, confinement: Confinement, *, schemas: bool = False) -> None:
        """With `schemas` it checks JSON by schemas, with the packages that do it, in place of code."""
        options = {"level": confinement.value, "schemas": schemas, "paths": sys.path if schemas else []}
        command = [sys.executable, "-I", "-S", "-B", "-c", PROGRAM.format(root=str(SOURCE)), json.dumps(options)]
        super().__init__(command, dict, folder="/")
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the program. Raises `OSError` where the kernel refuses it."""
        self.open()
        try:
            reply = self.receive(START_S)
        except Closed:
            reply = {"error": "its program ended"}
        if "level" not in reply:
            self.stop()
            raise OSError(reply.get("error"))

    def receive(self, wait_s: float) -> JsonObject:
        """Return the next reply. Raises `Closed` where none comes in time."""
        descriptor = self.pipes[1].fileno()
        if not select.select([descriptor], [], [], wait_s)[0]:
            raise Closed
        reply: JsonObject = read_message(descriptor)
        return reply

    def ask(self, kind: bytes, tasks: Sequence[JsonObject], timeout_s: int, memory_mb: int) -> CodeOutcome:
        """Run the processes of one request within these limits. Raises `Unavailable` (`E-SANDBOX`)."""
        limits = {"cpu_s": timeout_s, "memory_bytes": memory_mb << 20}
        request = {"wall_s": timeout_s + 1, "tasks": [{**task, **limits} for task in tasks]}
        if len(json.dumps(request)) > MOST_BYTES:
            return CodeOutcome("too_long", "")
        with self.lock:
            for attempt in (1, 2):  # the machine may have ended it, as for its memory
                try:
                    if self.process is None or self.owner != os.getpid():
                        self.start()
                    os.write(self.pipes[0].fileno(), kind)
                    write_message(self.pipes[0].fileno(), request)
                    reply = self.receive(timeout_s + ANSWER_S)
                    return CodeOutcome(str(reply["verdict"]), str(reply["printed"])[-PRINTED_CHARS:])
                except (Closed, OSError) as error:
                    self.stop()
                    if attempt == 2:
                        raise Unavailable(
                            "The sandbox for code of completions ended while it ran.",
                            why=str(error),
                            do="Look at the memory of this machine, and run `trainyard doctor`.",
                            code="E-SANDBOX",
                        ) from error
                except BaseException:
                    self.stop()  # an unread reply would answer the next request
                    raise
        raise AssertionError("the second attempt returns or raises")


@cache
def find_confinement() -> Confinement:
    """Return the strongest confinement that works in this process, by starting a program in each."""
    for confinement in (Confinement.NAMESPACES, Confinement.LANDLOCK) if sys.platform == "linux" else ():
        sandbox = Sandbox(confinement)
        try:
            if sandbox.ask(CODE, [{"code": "x = 1"}, {"tests": "assert x == 1"}], 10, 256).passed:
                return confinement
        except Unavailable:
            continue
        finally:
            sandbox.stop()
    return Confinement.NONE


def require_confinement() -> Confinement:
    """The confinement of code. Raises `Unavailable` (`E-SANDBOX`) where there is none and the operator wants it."""
    confinement = find_confinement()
    if confinement is Confinement.NONE and not settings().allow_unconfined_code:
        raise Unavailable(
            "Code of completions does not run here: the operating system cannot confine it.",
            why="Neither user namespaces nor Landlock with seccomp work.",
            do="Run it on Linux 5.13 or newer, or set allow_unconfined_code in trainyard.toml on a machine whose loss "
            "you can bear.",
            code="E-SANDBOX",
        )
    return confinement


class Sandboxes:
    """The sandboxes of a block: one for code and one for schemas, each started at its first use."""

    def __init__(self, confinement: Confinement | None = None) -> None:
        self.confinement = confinement
        self.opened: dict[bytes, Sandbox] = {}

    def get(self, kind: bytes) -> Sandbox:
        if kind not in self.opened:
            confinement = self.confinement or (require_confinement() if kind == CODE else find_confinement())
            self.opened[kind] = Sandbox(confinement, schemas=kind == SCHEMA)
        return self.opened[kind]

    def stop(self) -> None:
        for sandbox in self.opened.values():
            sandbox.stop()
        self.opened.clear()


_open_sandboxes: ContextVar[Sandboxes | None] = ContextVar("sandboxes", default=None)


@contextlib.contextmanager
def open_sandboxes(confinement: Confinement | None = None) -> Iterator[Sandboxes]:
    """Keep the sandboxes of this block for everything in it; those of a block around it, where there is one.

    With a confinement the block has sandboxes of its own, which have that one.
    """
    current = _open_sandboxes.get()
    if current is not None and confinement is None:
        yield current
        return
    sandboxes = Sandboxes(confinement)
    token = _open_sandboxes.set(sandboxes)
    try:
        yield sandboxes
    finally:
        _open_sandboxes.reset(token)
        sandboxes.stop()


def run_code(code: str, tests: str, *, timeout_s: int, memory_mb: int) -> CodeOutcome:
    """Run code that a model has written, and then assertions in another process. Raises `Unavailable`."""
    with open_sandboxes() as sandboxes:
        return sandboxes.get(CODE).ask(CODE, [{"code": code}, {"tests": tests}], timeout_s, memory_mb)


def check_schema(text: str, definition: object, *, timeout_s: int, memory_mb: int) -> CodeOutcome:
    """Check JSON by a schema, whose patterns and references may take any time. Raises `Unavailable`."""
    with open_sandboxes() as sandboxes:
        return sandboxes.get(SCHEMA).ask(SCHEMA, [{"text": text, "definition": definition}], timeout_s, memory_mb)
