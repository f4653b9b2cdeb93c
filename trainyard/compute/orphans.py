"""Supervised children that outlived their parent: found by their environment, and ended after a grace period.

The kernel signals a child when its parent is gone, and the child saves and ends. This module is for processes that do
not: a program that ignores SIGTERM, a fork that escaped. Every supervised child was started with the pid of its parent
in its environment, which the kernel shows until the child ends; a child without such an ancestor is an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trainyard.callbacks import never
from trainyard.compute.child import PARENT_VARIABLE, alive
from trainyard.compute.supervise import ProcessTree
from trainyard.home import default_home

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
