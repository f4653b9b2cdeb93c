"""The parent's side of a child: its pipes, an exchange of lines within limits, and the reason of its end.

    child = LineChild("trainyard.data.template_child", ChildLimits(cpu_s=1.0, memory_bytes=512 << 20))
    child.start({"template": text})          # the first line; returns the reply
    child.exchange(variables)                # one line to the child, one line back

A child that breaches a limit is gone (`ChildEnded`), and the caller starts another one. A child ends with the last
reference to it, and with its parent's end of the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from trainyard.inherited import child_environment
from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import ChildLimits, Death, find_death

WALL_S = 60.0
"""For one reply: a child that is stopped, or waits for a processor, uses no processor time."""
READ_BYTES = 1 << 16


class ChildEnded(Exception):
    """A child ended before it replied."""

    def __init__(self, death: Death, code: int | None) -> None:
        super().__init__(f"the child ended with {code}")
        self.death, self.code = death, code


class PipedChild:
    """A process whose standard input and output are pipes of this one. After a fork it is the parent's alone."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Callable[[], Mapping[str, str]] = child_environment,
        *,
        folder: str | None = None,
        errors: int | None = subprocess.DEVNULL,
        grace_s: float = 0.0,
    ) -> None:
        """`errors` is its standard error, None for that of this process; `grace_s` its time to end before a kill."""
        self.command, self.environment = command, environment
        self.folder, self.errors, self.grace_s = folder, errors, grace_s
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    @property
    def alive(self) -> bool:
        """Whether it runs, and is a child of this process."""
        return self.process is not None and self.owner == os.getpid() and self.process.poll() is None

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return its standard input and output."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def open(self) -> None:
        """Start the process, in place of an earlier one."""
        self.stop()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0,
            env=self.environment(), cwd=self.folder,
        )  # fmt: skip
        self.owner = os.getpid()
        self._end = weakref.finalize(self, end_process, self.process, self.owner, self.grace_s)

    def stop(self) -> None:
        """End the process. Does nothing for one that has been stopped."""
        if self.process is not None:
            self._end()
            self.process = None


def end_process(process: subprocess.Popen[bytes], owner: int, grace_s: float) -> None:
    """Close a child's pipes, and kill it if it does not end in time; another process's child is left alone."""
    if owner != os.getpid():
        return
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class LineChild(PipedChild):
    """A program of this package that answers lines of JSON by `lines.serve_lines`, under limits."""

    def __init__(self, module: str, limits: ChildLimits) -> None:
        super().__init__([sys.executable, "-P", "-m", module, json.dumps(limits)])
        self.unread = bytearray()

    def start(self, value: Any) -> JsonObject:
        """Start the program with its first line. Returns the reply; raises `ChildEnded`."""
        self.open()
        self.unread.clear()
        return self.exchange(json.dumps(value).encode())

    def exchange(self, line: bytes) -> JsonObject:
        """Send a line and return the reply. Raises `ChildEnded`."""
        self.send(line)
        return self.receive()

    def send(self, line: bytes) -> None:
        """Send a line. A child that has died is noticed at its reply, which does not come."""
        data = memoryview(line + b"\n")
        try:
            while data:
                data = data[os.write(self.pipes[0].fileno(), data) :]
        except BrokenPipeError:
            return
        except BaseException:
            self.stop()  # half a line
            raise

    def receive(self) -> JsonObject:
        """Return the next reply. Raises `ChildEnded` for a child that has died or is silent, which is ended."""
        try:
            line = self.read_line()
        except BaseException:
            self.stop()  # an unread reply would answer the next line
            raise
        if line.endswith(b"\n"):
            reply: dict[str, object] = json.loads(line)
            return reply
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is silent and lives
            self.process.wait(timeout=1)
        code = self.process.returncode
        self.stop()
        raise ChildEnded(find_death(code), code)

    def read_line(self) -> bytes:
        """Return one line; less at the end of the pipe, or after `WALL_S` without a byte."""
        descriptor = self.pipes[1].fileno()
        while b"\n" not in self.unread:
            if not select.select([descriptor], [], [], WALL_S)[0] or not (block := os.read(descriptor, READ_BYTES)):
                break
            self.unread += block
        line, end, self.unread = self.unread.partition(b"\n")
        return bytes(line + end)
