"""Supervision for programs that do not know the contract: `python -m trainyard.compute.shim FOLDER GRACE_S -- argv`.

The shim fulfils it in their place: events, log file, stop by SIGTERM, exit codes, `error.json`. As a sub-reaper it
inherits every process that the program leaves running, detached ones included, and ends it. The program's tree is
killed `GRACE_S` seconds after it was asked to stop.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.compute import child
from trainyard.compute.supervise import last_log_line, wait_for_end
from trainyard.errors import NotFound, TrainyardError

POLL_S = 0.1


def die_with_parent() -> None:
    """Runs in a program before it starts; the process that starts it has one thread, so this is safe there."""
    child.prctl(child.PR_SET_PDEATHSIG, signal.SIGKILL)


def start(
    argv: list[str],
    log: Path,
    before: Callable[[], None] = die_with_parent,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program with its output in the log file; `before` runs in it first.

    For a process of one thread. Raises `NotFound` (`E-PROGRAM`).
    """
    with log.open("ab") as stream:
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=cwd,
                env=env,
                preexec_fn=before,  # noqa: PLW1509 (the caller has one thread)
            )
        except (FileNotFoundError, PermissionError) as error:
            raise NotFound(
                f"The program {argv[0]!r} cannot be started: {error.strerror}.",
                do="Install it or correct its path.",
                code="E-PROGRAM",
            ) from error


def follow(
    process: subprocess.Popen[bytes], events: child.Events, ask: Callable[[], bool], watch: Callable[[], None]
) -> int:
    """Return a program's exit code. `ask` forwards a stop request until it returns True; `watch` runs at each poll."""
    forwarded = False
    while not wait_for_end(process, POLL_S):
        if events.stop_requested() and not forwarded:
            forwarded = ask()
        watch()
    watch()
    return process.returncode


def describe_end(code: int) -> str:
    """Return the end of a program in words, from its exit code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def main(where: str, grace_s: str, _border: str, *argv: str) -> None:
    """Run the program to its end and give its exit code the contract's meaning."""
    folder, kill_at = Path(where), math.inf
    with child.child_contract(folder) as events:
        process = start(list(argv), folder / child.LOG_FILE)
        events.emit("program", argv=argv, program_pid=process.pid)

        def ask() -> bool:
            nonlocal kill_at
            kill_at = time.monotonic() + float(grace_s)
            process.terminate()
            return True

        def enforce() -> None:
            if time.monotonic() > kill_at:
                child.end_descendants()

        code = follow(process, events, ask, enforce)
        if code == child.STOPPED_EXIT or (events.stop_requested() and code != 0):
            reason = "asked to stop" if events.stop_requested() else "the program stopped"
            raise child.Stopped(reason, program_exit=code)
        if code != 0:
            raise TrainyardError(
                f"{os.path.basename(argv[0])} {describe_end(code)}.",
                why=last_log_line(folder),
                do=f"Read {child.LOG_FILE} in {folder}.",
                code="E-PROGRAM",
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
