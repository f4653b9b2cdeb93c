"""A launcher without torch, and programs for the processes that it starts, for the tests of `compute.ranks`.

    python -m tests.unit.compute.crews SIZE PROGRAM FOLDER

As torchrun it sets `RANK` and `WORLD_SIZE`, turns every failure into 1, and ends the rest when one fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainyard.compute.child import Events, Stopped
from trainyard.errors import InvalidInput

STEP_S = 0.02
LONG = 6000
"""Steps: two minutes, which no test waits for."""


def rank() -> int:
    return int(os.environ["RANK"])


def works(folder: Path, events: Events) -> None:
    """A few steps, told by the first process."""
    for step in range(3):
        events.emit("progress", step=step + 1)
        time.sleep(STEP_S)
    (folder / f"finished-{rank()}").touch()


def stops(folder: Path, events: Events) -> None:
    """The first process looks for a stop; the others follow its file, as they would follow its word."""
    for step in range(LONG):
        (folder / f"at-{rank()}").write_text(str(step))
        if rank() == 0 and events.stop_requested():
            (folder / "halt").touch()
            raise Stopped("asked to stop; a checkpoint is saved", step=step)
        if rank() != 0 and (folder / "halt").exists():
            return
        time.sleep(STEP_S)


def saves_slowly(folder: Path, events: Events) -> None:
    """Takes a while for saving after it was asked."""
    while not events.stop_requested():
        time.sleep(STEP_S)
    if rank() == 0:
        time.sleep(0.6)
        (folder / "saved").touch()
        raise Stopped("saved", step=7)


def refuses(folder: Path, events: Events) -> None:
    """The second process finds the input wrong; the first then misses it."""
    if rank() == 1:
        raise InvalidInput("The rows are wrong.", why="One is empty.", do="Mend it.", code="E-DATA-EMPTY")
    time.sleep(0.2)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")


def dies(folder: Path, events: Events) -> None:
    """The second process is killed; the first then misses it."""
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")


def lingers(folder: Path, events: Events) -> None:
    """All wait for one that never comes."""
    time.sleep(STEP_S * LONG)


def main(size: int, program: str, folder: str) -> int:
    target = f"{__spec__.name}:{program}"
    argv = [sys.executable, "-m", "trainyard.compute.rank_process", target, folder]
    ranks = [
        subprocess.Popen(argv, env={**os.environ, "RANK": str(number), "WORLD_SIZE": str(size)})
        for number in range(size)
    ]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() not in (None, 0) for rank in ranks):
            time.sleep(0.4)
            for rank in ranks:
                rank.kill()
        time.sleep(STEP_S)
    return int(any(rank.returncode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:4]))
