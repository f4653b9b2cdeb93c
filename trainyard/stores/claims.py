"""Hidden files and folders with the lock of the process that writes them; without it, a killed process left them.

A writer locks (flock(2)) what it creates, from its creation until the context ends. The kernel
releases the lock when the writer dies, also by SIGKILL: a temporary name that nobody has locked has no writer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trainyard.stores.files import is_open

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
