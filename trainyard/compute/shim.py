"""Supervision for programs that do not know the contract: `python -m trainyard.compute.shim FOLDER [options] -- argv`.

The shim fulfils it in their place: events, log file, stop by signal, exit codes, `error.json`. As a sub-reaper it
inherits every process that the program leaves running, detached ones included, and ends it. Options:

    --stop-signal INT   signal that asks the program to stop (default TERM)
    --grace 30          seconds until the program's tree is killed after that
    --exit 3=75         the program's exit code 3 means 75 (stopped); may be repeated
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.compute.child import (
    LOG_FILE,
    PR_SET_PDEATHSIG,
    STOPPED_EXIT,
    Events,
    Stopped,
    child_contract,
    end_descendants,
    prctl,
)
from trainyard.compute.supervise import ended, last_log_line
from trainyard.errors import NotFound, TrainyardError

POLL_S = 0.1


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainyard.compute.shim")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-signal", default="TERM")
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--exit", action="append", default=[], metavar="CODE=MEANING")
    return parser


def die_with_parent() -> None:
    """Runs in a program before it starts; the process that starts it has one thread, so this is safe there."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
    process: subprocess.Popen[bytes],
    events: Events,
    ask: Callable[[], bool],
    watch: Callable[[], None] | None = None,
) -> int:
    """Return a program's exit code. `ask` forwards a stop request until it returns True; `watch` runs at each poll."""
    asked = False
    while not ended(process, POLL_S):
        if events.stop_requested() and not asked:
            asked = ask()
        if watch is not None:
            watch()
    if watch is not None:
        watch()
    return process.returncode


def how_ended(code: int) -> str:
    """The end of a program in words, from its exit code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def wait(process: subprocess.Popen[bytes], events: Events, stop_signal: int, grace_s: float) -> int:
    """Return the program's exit code; a stop request is forwarded once, and enforced after the grace."""
    kill_at: float | None = None
    while not ended(process, POLL_S):
        if events.stop_requested() and kill_at is None:
            kill_at = time.monotonic() + grace_s
            process.send_signal(stop_signal)
        if kill_at is not None and time.monotonic() > kill_at:
            end_descendants()
    return process.returncode


def meanings(pairs: list[str]) -> dict[int, int]:
    """`["3=75"]` as {3: 75}."""
    return {int(code): int(meaning) for code, _, meaning in (pair.partition("=") for pair in pairs)}


def run(options: argparse.Namespace, argv: list[str], events: Events) -> None:
    """Run the program to its end and give its exit code the contract's meaning."""
    stop_signal = signal.Signals[f"SIG{options.stop_signal.removeprefix('SIG')}"]
    process = start(argv, options.folder / LOG_FILE)
    events.emit("program", argv=argv, program_pid=process.pid)
    code = wait(process, events, stop_signal, options.grace)
    meaning = meanings(options.exit).get(code, code)
    if meaning == STOPPED_EXIT or (events.stop_requested() and code != 0):
        raise Stopped("asked to stop" if events.stop_requested() else "the program stopped", program_exit=code)
    if meaning != 0:
        raise TrainyardError(
            f"{os.path.basename(argv[0])} {how_ended(code)}.",
            why=last_log_line(options.folder),
            do=f"Read {LOG_FILE} in {options.folder}.",
            code="E-PROGRAM",
        )


def main(arguments: list[str]) -> None:
    border = arguments.index("--") if "--" in arguments else len(arguments)
    options, argv = parser().parse_args(arguments[:border]), arguments[border + 1 :]
    if not argv:
        parser().error("no program is named after --")
    with child_contract(options.folder) as events:
        run(options, argv, events)


if __name__ == "__main__":
    main(sys.argv[1:])
