"""Steps of an installation: a command with its output in `install.log`, ended together with what it has started."""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trainyard.compute.supervise import ProcessTree, wait_for_end
from trainyard.errors import Unavailable

LOG_FILE = "install.log"
POLL_S = 0.5


class Ending:
    """SIGTERM and Ctrl-C during an installation: what runs is ended, what is half made is removed, then we go.

    Without this, SIGTERM would end only this process and leave pip running in an abandoned folder. After the first
    signal, later ones are ignored, so that nothing is left behind.
    """

    def __init__(self) -> None:
        self.signal_number, self.deferred = 0, False

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Take both while the block runs. Python gives signals to its main thread; elsewhere nothing is changed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.signal_number = 0
        signals = [
            number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN
        ]
        before = {number: signal.signal(number, self.note) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def note(self, number: int, _frame: FrameType | None) -> None:
        first, self.signal_number = not self.signal_number, self.signal_number or number
        if first and not self.deferred:
            self.go()

    @contextmanager
    def later(self) -> Iterator[None]:
        """Defer signals while a process is started: one that is not recorded yet would not be ended."""
        self.deferred, before = True, self.signal_number
        try:
            yield
        finally:
            self.deferred = False
        if self.signal_number and not before:
            self.go()

    def go(self) -> NoReturn:
        raise KeyboardInterrupt if self.signal_number == signal.SIGINT else SystemExit(128 + self.signal_number)


ENDING = Ending()


def run_install_step(argv: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Run a step of an installation with its output in `install.log`. Raises `Unavailable` (`E-INSTALL`).

    A step that is still running when we are interrupted is ended with us, and all that it has started.
    """
    running: list[tuple[subprocess.Popen[bytes], ProcessTree]] = []
    try:
        with ENDING.later(), (folder / LOG_FILE).open("ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode())
            log.flush()
            process = subprocess.Popen(argv, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            running.append((process, ProcessTree(process.pid)))
        while not wait_for_end(process, POLL_S):
            running[0][1].refresh(every_s=POLL_S)
    finally:
        for process, tree in running:
            tree.end()
            process.wait()
    if process.returncode:
        raise make_install_error(shlex.join(argv[:4]), last_line(folder / LOG_FILE))


def make_install_error(step: str, why: str) -> Unavailable:
    return Unavailable(
        f"The installation failed at {step}.",
        why=why,
        do="Read install.log; check the network and the free space, then run the same command again.",
        code="E-INSTALL",
    )


def last_line(log: Path) -> str:
    """The last line of a log that says what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines[-50:] if line.startswith(("ERROR", "error:", "E:"))]
    return (errors or lines or ["it said nothing"])[-1][:300]
