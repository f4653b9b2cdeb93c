"""Distributed training as one supervised child: `python -m trainyard.compute.launcher_supervisor FOLDER -- argv`.

A launcher (torchrun, accelerate launch) starts the processes and watches them, but does not know the contract: it turns
every exit code into 1, and on SIGTERM it kills after 30 seconds, also a process that is saving. This program fulfils
the contract in its place. A stop request goes to rank 0 alone, whose program stops all ranks at the same step; the
launcher never sees the signal, as it is started with it blocked. The result of the run is read from the status files of
the processes (see `trainyard.compute.rank_process`), and none of them is left when this program ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainyard.compute import child
from trainyard.compute.rank_process import LAUNCHER_VARIABLE, LEADER, RANKS_FOLDER, STOP_SIGNALS, read_notes, running
from trainyard.compute.roll_call import StopRequested, meet_hosts, read_host
from trainyard.compute.shim import start
from trainyard.compute.supervise import last_log_line, wait_for_end
from trainyard.errors import Conflict, TrainyardError, from_fields
from trainyard.json_types import JsonObject

POLL_S = 0.1
LOST_GRACE_S = 5.0
"""Time for the other ranks to notice that one was killed."""
LEAVE_S = 30.0
"""Time for the other ranks and the launcher to end after rank 0 is done."""
ORPHANS_WAIT_S = 2.0 * child.ORPHAN_GRACE_S + 30.0
"""Time for the processes of an earlier start to end: its supervisor has its grace, and then its ranks have theirs."""
ORPHANS_POLL_S = 0.5
MODULES = frozenset({"trainyard.compute.launcher_supervisor", "trainyard.compute.rank_process"})
"""Modules that the command lines of a supervisor, a launcher and a rank contain."""


def reset_signals() -> None:
    """Runs in the launcher before it starts: it dies with this process, and stop requests do not reach it."""
    child.prctl(child.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


@dataclass(frozen=True)
class LauncherEnd:
    """How a launcher ended: its exit code, the ranks that were killed before the others ended, and who ended it."""

    code: int
    killed: list[int]
    ended_here: bool = False
    """This program ended it, as its ranks did not end."""

    def is_from_outside(self) -> bool:
        """Return whether a user or the system killed the launcher itself."""
        return self.code < 0 and not self.killed and not self.ended_here


def watch(process: subprocess.Popen[bytes], folder: Path, events: child.Events, first: int = LEADER) -> LauncherEnd:
    """Return when the launcher has ended; forward a stop request to rank 0, or to the first rank of this host.

    Ranks that were killed before any other one ended are noted. The others are ended soon after them: without it they
    can save nothing, and one that computes alone would do so until the launcher kills it.
    """
    stop_sent, ended_here, done_at, lost_at = False, False, 0.0, 0.0
    lost: list[int] = []
    while not wait_for_end(process, POLL_S):
        notes = read_notes(folder)
        leader = notes.get(first, {})
        if not lost and (gone := find_killed(notes)) and (process.poll() or 0) >= 0:  # else they died with the launcher
            lost, lost_at = gone, time.monotonic()
        if lost and time.monotonic() - lost_at > LOST_GRACE_S:
            child.end_descendants()
        if events.stop_requested() and not stop_sent:
            if not notes:
                child.end_descendants()
                raise child.Stopped("asked to stop before the start", step=0)
            if leader:
                with suppress(psutil.NoSuchProcess):  # it has already ended
                    psutil.Process(leader["pid"]).send_signal(signal.SIGTERM)
                stop_sent = True
        if leader.get("status") in ("done", "stopped"):
            done_at = done_at or time.monotonic()
            if time.monotonic() - done_at > LEAVE_S:
                ended_here = True
                child.end_descendants()
    return LauncherEnd(process.returncode, lost, ended_here)


def find_killed(notes: dict[int, JsonObject]) -> list[int]:
    """Return the ranks that are gone and have noted no end."""
    return [rank for rank, note in sorted(notes.items()) if note["status"] == "running" and not running(note["pid"])]


def wait_for_orphans(folder: Path, events: child.Events) -> None:
    """Wait for the processes of an earlier start in this folder, which save there after their parent was killed.

    They share the status files, so the two starts would take each other's end for their own. Raises `Stopped`, and
    `Conflict` (`E-DEVICE-BUSY`) for processes that do not end.
    """
    deadline = time.monotonic() + ORPHANS_WAIT_S
    while orphans := list_orphans(folder):
        if events.stop_requested():
            raise child.Stopped("asked to stop before the start", step=0)
        if time.monotonic() > deadline:
            raise Conflict(
                f"{len(orphans)} processes of an earlier start still run: pid {', '.join(map(str, orphans))}.",
                why=f"They write into {folder}, and did not end within {ORPHANS_WAIT_S:.0f} s.",
                do="End them, then start it again: it continues from its last checkpoint.",
                code="E-DEVICE-BUSY",
            )
        time.sleep(ORPHANS_POLL_S)


def list_orphans(folder: Path) -> list[int]:
    """Return the pids of other supervisors, launchers and ranks of this folder, by their command lines."""
    lineage = {os.getpid(), *(ancestor.pid for ancestor in psutil.Process().parents())}
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.pid not in lineage and is_of_folder(process.info["cmdline"] or [], folder) and child.alive(process)
    ]


def is_of_folder(command: list[str], folder: Path) -> bool:
    """Return whether a command line is that of a supervisor, a launcher or a rank of this folder."""
    return str(folder) in command and not MODULES.isdisjoint(command)


def wait_for_hosts(folder: Path, events: child.Events) -> None:
    """Wait until all hosts of a training are there, where there are several. Raises `Stopped`, and as `meet_hosts`."""
    host = read_host(folder)
    if host is None:
        return
    events.emit("hosts", text=f"waits for {len(host.names)} hosts at {host.address}:{host.port}")
    try:
        warnings = meet_hosts(host, events.stop_requested)
    except StopRequested:
        raise child.Stopped("asked to stop before the start", step=0) from None
    for text in warnings:
        events.emit("warning", text=text)


def raise_for_exit(end: LauncherEnd, folder: Path, size: int, events: child.Events, first: int = LEADER) -> None:
    """Translate the launcher's exit. Raises `Stopped`, or the error of the process that failed first."""
    notes = read_notes(folder)
    leader = notes.get(first, {})
    # Ranks whose launcher is killed save and stop, too: nobody has requested that stop.
    if leader.get("status") == "stopped" and (events.stop_requested() or not end.is_from_outside()):
        raise child.Stopped(leader["reason"], **leader["fields"])
    if leader.get("status") == "done":
        if end.code != 0:
            events.emit("warning", text=f"The training was done before a process failed: {last_log_line(folder)}")
        return
    raise cause(notes, folder, size, end)


def cause(notes: dict[int, JsonObject], folder: Path, size: int, end: LauncherEnd) -> TrainyardError:
    """Return why a distributed run failed: the error of the first process with a reason of its own."""
    failures = sorted(
        (note for note in notes.values() if note["status"] == "failed"), key=lambda note: float(note["time"])
    )
    for note in failures:
        if not note["lost"]:
            return from_fields(note["error"])
    if end.is_from_outside():
        return TrainyardError(
            f"The launcher of the {size} processes that trained together was ended from outside by "
            f"{signal.Signals(-end.code).name}.",
            why="A user ended it, or the system, out of memory. The processes that it had started were ended.",
            do="Start the same run again: it continues from its last checkpoint.",
            code="E-RANK-LOST",
        )
    ranks = end.killed or [rank for rank, note in sorted(notes.items()) if note["status"] == "running"]
    if ranks:
        return TrainyardError(
            f"Process {ranks[0]} of {size} that trained together was ended from outside "
            f"(pid {notes[ranks[0]]['pid']}).",
            why="It left no error: a user killed it, or the system, out of memory. The others were ended.",
            do="Start the same run again: it continues from its last checkpoint. For lack of memory, lower batch_size.",
            code="E-RANK-LOST",
        )
    if failures:  # each of them lost another one, which is on another host
        return TrainyardError(
            f"A process of the {size} that trained together was lost on another host.",
            why=f"The processes here ended with: {failures[0]['error']['what']}",
            do="Look at the same job on the other hosts, and start it again on all of them: it continues from its last "
            "checkpoint.",
            code="E-RANK-LOST",
        )
    return TrainyardError(
        f"The {size} processes that should train together did not start.",
        why=last_log_line(folder),
        do=f"Read {child.LOG_FILE} in {folder}.",
        code="E-LAUNCH",
    )


def main(arguments: list[str]) -> None:
    border = arguments.index("--")
    folder, argv = Path(arguments[0]), arguments[border + 1 :]
    size, _, place = arguments[1].partition(":")
    first = int(place or LEADER)
    with child.child_contract(folder) as events:
        wait_for_orphans(folder, events)
        shutil.rmtree(folder / RANKS_FOLDER, ignore_errors=True)
        (folder / RANKS_FOLDER).mkdir()
        wait_for_hosts(folder, events)
        os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
        process = start(argv, folder / child.LOG_FILE, reset_signals)
        events.emit("program", argv=argv, program_pid=process.pid)
        raise_for_exit(watch(process, folder, events, first), folder, int(size), events, first)


if __name__ == "__main__":
    main(sys.argv[1:])
