"""Run a target on one input after another in a limited child, and note what hangs, grows, or raises without a code.

A child that dies is replaced; the input that it was reading is the finding. CPU seconds count, not seconds of a clock,
so a busy machine makes no finding.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.mutations import make_input
from tests.fuzz.planted import plant
from tests.fuzz.targets import HANG_S, TARGETS, Run
from trainyard.sandbox.limits import allow_cpu, die_with_parent, limit_memory

MEMORY_BYTES = 1 << 30
INPUTS_PER_CHILD = 2000
BOARD = struct.Struct("!QQ")
"""Number of the next input, inputs that were refused with a code: shared with the child, so that it survives it."""
OWN = Path(__file__).parents[2]


@dataclass
class Report:
    target: str
    seed: int
    inputs: int = 0
    coded: int = 0
    findings: dict[str, dict[str, str | int]] = field(default_factory=dict)
    """What happened and where -> the first input that showed it."""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, where: str, number: int) -> None:
        self.counts[kind] += 1
        self.findings.setdefault(f"{kind}: {where}", {"number": number, "seed": self.seed})

    def line(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items())) or "no finding"
        return f"{self.target} seed {self.seed}: {self.inputs:,} inputs, {self.coded:,} refused with a code, {kinds}"


class Board:
    """What a child writes down before each input."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BOARD.size)

    def read(self) -> tuple[int, int]:
        number, coded = BOARD.unpack(self._memory[:])
        return number, coded

    def write(self, number: int, coded: int) -> None:
        self._memory[:] = BOARD.pack(number, coded)

    def close(self) -> None:
        self._memory.close()


@dataclass(frozen=True)
class Fuzzing:
    """One run of the fuzzer."""

    report: Report
    board: Board
    run: Run
    seeds: list[tuple[str, bytes]]
    deadline: float
    once: bool
    """Whether the first finding ends it."""

    def run_child(self) -> int:
        """Run inputs in a child and take its findings; returns its wait status."""
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(receive)
                die_with_parent()
                limit_memory(MEMORY_BYTES)
                self.work(send)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(send)
        with os.fdopen(receive, "rb") as stream:
            for line in stream:
                self.report.add(*json.loads(line))
                if self.once:
                    os.kill(child, signal.SIGKILL)
                    break
        status = os.waitpid(child, 0)[1]
        return 0 if self.once and self.report.findings else status

    def work(self, send: int) -> None:
        """The child's side: one input after another."""
        unclosed: list[str] = []
        warnings.simplefilter("error", ResourceWarning)
        sys.unraisablehook = lambda unraisable: unclosed.append(str(unraisable.exc_value)[:200])
        first, coded = self.board.read()
        for number in range(first, first + INPUTS_PER_CHILD):
            if time.monotonic() > self.deadline:
                return
            name, data = make_input(self.seeds, self.report.seed, number)
            allow_cpu(HANG_S)
            try:
                self.run(name, data)
            except TARGETS[self.report.target].coded:
                coded += 1
            except MemoryError:
                tell(send, "memory", f"over {MEMORY_BYTES >> 20} MiB in {name}", number)
            except Exception as error:
                tell(send, "uncoded", f"{type(error).__name__} at {locate_error(error)}", number)
            allow_cpu(0)
            if unclosed:
                tell(send, "unclosed", unclosed[0], number)
                unclosed.clear()
            self.board.write(number + 1, coded)


def fuzz(target: str, *, seconds: float, seed: int, planted: str = "", until_found: bool = False) -> Report:
    """Fuzz one target for some seconds, or until the first finding."""
    report, board, deadline = Report(target, seed), Board(), time.monotonic() + seconds
    run = plant(TARGETS[target].run, planted) if planted else TARGETS[target].run
    fuzzing = Fuzzing(report, board, run, TARGETS[target].seeds(target), deadline, until_found)
    gc.freeze()
    while time.monotonic() < deadline and not (until_found and report.findings):
        status = fuzzing.run_child()
        report.inputs, report.coded = board.read()
        if os.waitstatus_to_exitcode(status) != 0:
            report.add(*ending(status), report.inputs)
            board.write(report.inputs + 1, report.coded)
    board.close()
    return report


def ending(status: int) -> tuple[str, str]:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return "hang", f"over {HANG_S:g} s of CPU"
    return "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}"


def tell(send: int, kind: str, location: str, number: int) -> None:
    os.write(send, json.dumps([kind, location, number]).encode() + b"\n")


def locate_error(error: BaseException) -> str:
    """The last line of our own code that an exception passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(OWN))]
    own_frames = [frame for frame in frames if "/.venv/" not in frame.filename]
    last = own_frames[-1] if own_frames else None
    return f"{Path(last.filename).relative_to(OWN)}:{last.lineno}" if last else "?"


def replay(target: str, seed: int, number: int) -> Iterator[str]:
    """Run one input in this process, without limits; yields its name and length first."""
    name, data = make_input(TARGETS[target].seeds(target), seed, number)
    yield f"{name}, {len(data):,} bytes: {data[:200]!r}"
    TARGETS[target].run(name, data)
    yield "read"
