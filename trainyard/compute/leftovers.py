"""Temporary folders of this home: where its flows make them, and which of them are no longer used.

A killed flow cannot remove its own. All are in one folder per home, so that they can be found. A folder is removed when
no live process works in it or names it, and when it is too old for its process to be starting.

Supervised children that outlived their parent: found by their environment, and ended after a grace period.

The kernel signals a child when its parent is gone, and the child saves and ends. This module is for processes that do
not: a program that ignores SIGTERM, a fork that escaped. Every supervised child was started with the pid of its parent
in its environment, which the kernel shows until the child ends; a child without such an ancestor is an orphan.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainyard.callbacks import never
from trainyard.compute.child import PARENT_VARIABLE, alive
from trainyard.compute.supervise import ProcessTree
from trainyard.locations import default_home

LONGEST_PATH = 60
"""Sockets in temporary folders have at most 107 bytes for their whole path (unix(7)), of which libraries take 40."""
PATTERNS = ("prefect-workspace-attempt-*", "tmp*prefect")
"""Folders that Prefect's worker and its runs leave when they are killed."""
YOUNG_S = 600.0
"""A busy machine takes minutes between making a workspace and starting its run."""


def temporary_folder(home: Path) -> Path:
    """Return the folder for temporary files of a home's flows, made if it is not there: `home/tmp`, or a short one.

    Below the machine's own folder it belongs to this user alone; one that somebody else made is not used.
    """
    folder = home / "tmp"
    if len(os.fsencode(folder)) > LONGEST_PATH:
        digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        short = Path(tempfile.gettempdir()) / f"trainyard-{os.getuid()}-{digest}"
        short.mkdir(mode=0o700, exist_ok=True)
        if short.lstat().st_uid == os.getuid() and not short.is_symlink():
            return short
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def find_unused_folders(home: Path, *, young_s: float = YOUNG_S) -> list[Path]:
    """Return the folders that killed flows of this home have left."""
    folder, now = temporary_folder(home), time.time()
    folders = [path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_dir() and not path.is_symlink()]
    old = [path for path in folders if now - path.stat().st_mtime >= young_s]
    used = list_used_paths() if old else []
    return [path for path in old if not any(str(path) in text for text in used)]


def list_used_paths() -> list[str]:
    """Working folder, command line and environment of every process that this user may inspect."""
    used = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended, or is another user's
            used.append("\n".join([process.cwd(), *process.cmdline(), *process.environ().values()]))
    return used


def sweep_temporary(home: Path, *, young_s: float = YOUNG_S) -> list[Path]:
    """Remove what `find_unused_folders` finds, and return it."""
    going = find_unused_folders(home, young_s=young_s)
    for path in going:
        shutil.rmtree(path, ignore_errors=True)  # one that cannot be removed now is tried again at the next look
    return going


def sweep_locks(adapters: Path) -> list[Path]:
    """Remove the `.deploying` files that no deployment has locked, and return them."""
    removed = []
    for path in adapters.glob("*/*/.deploying"):
        with suppress(FileNotFoundError, BlockingIOError), path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
    return removed


def sweep_leftovers(home: Path) -> Iterator[str]:
    """Remove what killed processes of this home have left, and report it."""
    for path in sweep_temporary(home):
        yield f"removed the temporary folder {path.name} of a run that is gone"
    sweep_locks(home / "adapters")


HOME_VARIABLE = "TRAINYARD_HOME"
GRACE_S = 40.0
"""An orphan is ended this long after it was first seen: with a check every ten seconds, within 60 s."""
LOOK_EVERY_S = 0.5
STUCK_S = 5.0
"""A process in an uninterruptible wait cannot be ended; nothing waits for it longer than this."""


def orphans(home: Path) -> Iterator[psutil.Process]:
    """Live children of this home whose parent is gone. Costs a few milliseconds per hundred processes."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            parent, home_value = environment.get(PARENT_VARIABLE), environment.get(HOME_VARIABLE)
            if parent is None or (Path(home_value).expanduser().absolute() if home_value else default_home()) != home:
                continue
            if int(parent) not in [ancestor.pid for ancestor in process.parents()] and alive(process):
                yield process
        except (psutil.Error, ValueError, OSError):
            continue  # somebody else's process, or one that ended while we looked


@dataclass
class Sweeper:
    """Ends the orphans of a home that have had their time. Call `look` again and again."""

    home: Path
    grace_s: float = GRACE_S
    seen: dict[psutil.Process, float] = field(default_factory=dict)
    """Orphan -> when it was first seen (`time.monotonic()`)."""

    def look(self) -> list[int]:
        """End those whose grace is over and return their pids."""
        now = time.monotonic()
        self.seen = {process: self.seen.get(process, now) for process in orphans(self.home)}
        over = [process for process, first in self.seen.items() if now - first >= self.grace_s]
        for process in over:
            ProcessTree(process.pid).end()
        return [process.pid for process in over]


def sweep(home: Path, *, grace_s: float = GRACE_S, give_up: Callable[[], bool] = never) -> list[int]:
    """Wait for the orphans of a home to end, at most `grace_s` seconds, then end them. Returns whom it had to end."""
    sweeper, ended = Sweeper(home, grace_s), list[int]()
    deadline = time.monotonic() + grace_s + STUCK_S
    while True:
        ended += sweeper.look()
        if not sweeper.seen or give_up() or time.monotonic() > deadline:
            return ended
        time.sleep(LOOK_EVERY_S)
