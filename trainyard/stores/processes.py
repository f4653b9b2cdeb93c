"""Identity of processes in records: the pid together with its start, which no change of the clock moves.

    record = {"pid": os.getpid(), "create_time": process_start()}
    find_process(record["pid"], record["create_time"])          the process, or None if it is another one by now

A pid alone comes back after a while. On Linux the start is `<boot id>/<ticks>`: the clock ticks between the boot and
the process's start (field 22 of /proc/PID/stat, proc_pid_stat(5)), which never change. psutil's `create_time()` adds
the boot time to them, and that moves with the wall clock. Elsewhere psutil's value is what the kernel noted once.

Hidden files and folders with the lock of the process that writes them; without it, a killed process left them.

A writer locks (flock(2)) what it creates, from its creation until the context ends. The kernel
releases the lock when the writer dies, also by SIGKILL: a temporary name that nobody has locked has no writer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

import psutil

from trainyard.stores.files import is_open

Start = str | float
"""`<boot id>/<ticks>`; a number is a wall time in Unix seconds: of another system, or written by an older version."""

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
SAME_S = 1.0
"""How far two readings of one wall time may differ; two processes of one pid never start within a second."""


def process_start(pid: int | None = None) -> Start:
    """When a process started, this one by default. Raises `psutil.NoSuchProcess`."""
    pid = os.getpid() if pid is None else pid
    if not BOOT_ID_FILE.exists():
        wall: float = psutil.Process(pid).create_time()
        return wall
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    # The second field, the program's name, is in parentheses and may contain anything.
    return f"{boot_id()}/{text.rpartition(')')[2].split()[19]}"


def find_process(pid: int, start: Start) -> psutil.Process | None:
    """Return the living process that started then under this pid; None if it ended, a zombie included."""
    try:
        process = psutil.Process(pid)
        actual: Start = process.create_time() if isinstance(start, int | float) else process_start(pid)
        if isinstance(actual, str) or isinstance(start, str):
            same = actual == start
        else:
            same = abs(actual - start) < SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, ValueError):  # gone, or no pid at all
        return None


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot; empty where there is none."""
    return BOOT_ID_FILE.read_text(encoding="ascii").strip() if BOOT_ID_FILE.exists() else ""


NOT_OURS = (FileNotFoundError, BlockingIOError, PermissionError)
"""It is gone, a process works on it, or another user made it."""


@contextmanager
def claim_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file and lock it. Raises `FileExistsError`."""
    while True:
        with path.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not is_open(path, file.fileno()):  # a process that saw it without its lock removed it
                continue
            yield file
            return


@contextmanager
def claim_folder(path: Path) -> Iterator[Path]:
    """Create a folder and lock it. Raises `FileExistsError`."""
    while True:
        path.mkdir(mode=0o700)
        with open_entry(path) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not is_open(path, descriptor):
                continue
            yield path
            return


def is_abandoned(path: Path) -> bool:
    """Whether no process works on a file or a folder that is there."""
    with suppress(*NOT_OURS), open_entry(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def remove_abandoned(path: Path) -> bool:
    """Remove a file or a folder, unless a process works on it; return whether it was removed."""
    with suppress(*NOT_OURS), open_entry(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_open(path, descriptor):
            return False
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return True
    return False


@contextmanager
def open_entry(path: Path) -> Iterator[int]:
    """Open a file or a folder to lock it; a link is not followed (`OSError`)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
