"""The trusted side of the sandbox: it starts one for a batch of completions, and asks it about each of them.

How far the operating system confines code is tried, not guessed: namespaces first, then Landlock with seccomp. Where
neither works no code runs, unless the setting `allow_unconfined_code` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.compute.sandbox.wire import MOST_BYTES, Closed, read_message, write_message
from trainyard.compute.sandbox.zygote import CODE, LANDLOCK, NAMESPACES, NONE, SCHEMA
from trainyard.errors import Unavailable
from trainyard.settings import settings

PROGRAM = "import sys; sys.path.insert(0, {root!r}); from trainyard.compute.sandbox.zygote import main; main()"
SOURCE = Path(__file__).parents[3]
START_S, ANSWER_S = 60.0, 60.0
"""How long a busy machine may take to start the program, and to answer beyond the time of a request."""
PRINTED_CHARS = 4096


class Confinement(StrEnum):
    """How the operating system confines code."""

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
    """What became of a request."""

    verdict: str
    printed: str
    """The last 4,096 characters."""

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


@dataclass
class Sandbox:
    """A program under one confinement, which starts with its first request. Thread-safe."""

    confinement: Confinement
    schemas: bool = False
    """Whether it checks JSON by schemas, with the packages that do it, in place of code."""
    process: subprocess.Popen[bytes] | None = None
    owner: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the program. Raises `OSError` with what the kernel refuses."""
        options = {"level": self.confinement.value, "schemas": self.schemas, "paths": sys.path if self.schemas else []}
        command = [sys.executable, "-I", "-S", "-B", "-c", PROGRAM.format(root=str(SOURCE)), json.dumps(options)]
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/"
        )
        try:
            reply = self.receive(START_S)
        except Closed:
            reply = {"error": "its program ended"}
        if "level" not in reply:
            self.stop()
            raise OSError(reply.get("error"))

    def stop(self) -> None:
        """End the program and what runs in it."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.kill()
            process.stdout.close()
            process.wait()

    def receive(self, wait_s: float) -> dict[str, Any]:
        """The next reply. Raises `Closed` where none comes in time."""
        assert self.process is not None
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], wait_s)[0]:
            raise Closed
        reply: dict[str, Any] = read_message(descriptor)
        return reply

    def ask(self, kind: bytes, tasks: Sequence[dict[str, Any]], timeout_s: int, memory_mb: int) -> CodeOutcome:
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
                    assert self.process is not None
                    assert self.process.stdin is not None
                    os.write(self.process.stdin.fileno(), kind)
                    write_message(self.process.stdin.fileno(), request)
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
                    self.stop()  # a reply that nobody reads would answer the next request
                    raise
        raise AssertionError("the second attempt returns or raises")


@cache
def find_confinement() -> Confinement:
    """The strongest confinement that works in this process, by starting a program in each."""
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
            known = self.confinement or (require_confinement() if kind == CODE else find_confinement())
            self.opened[kind] = Sandbox(known, schemas=kind == SCHEMA)
        return self.opened[kind]

    def stop(self) -> None:
        for sandbox in self.opened.values():
            sandbox.stop()
        self.opened.clear()


_kept: ContextVar[Sandboxes | None] = ContextVar("sandboxes", default=None)


@contextlib.contextmanager
def open_sandboxes(confinement: Confinement | None = None) -> Iterator[Sandboxes]:
    """Keep the sandboxes of this block for everything in it; those of a block around it, where there is one.

    With a confinement the block has sandboxes of its own, which have that one.
    """
    kept = _kept.get()
    if kept is not None and confinement is None:
        yield kept
        return
    sandboxes = Sandboxes(confinement)
    token = _kept.set(sandboxes)
    try:
        yield sandboxes
    finally:
        _kept.reset(token)
        sandboxes.stop()


def run_code(code: str, tests: str, *, timeout_s: int, memory_mb: int) -> CodeOutcome:
    """Run code that a model has written, and then assertions in another process. Raises `Unavailable`."""
    with open_sandboxes() as sandboxes:
        return sandboxes.get(CODE).ask(CODE, [{"code": code}, {"tests": tests}], timeout_s, memory_mb)


def check_schema(text: str, definition: Any, *, timeout_s: int, memory_mb: int) -> CodeOutcome:
    """Check JSON by a schema, whose patterns and references may take any time. Raises `Unavailable`."""
    with open_sandboxes() as sandboxes:
        return sandboxes.get(SCHEMA).ask(SCHEMA, [{"text": text, "definition": definition}], timeout_s, memory_mb)
