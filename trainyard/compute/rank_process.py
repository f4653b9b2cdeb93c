"""Process of a distributed training: `python -m trainyard.compute.rank_process package.module:function FOLDER`.

Started by a launcher (torchrun, accelerate launch) that sets `RANK` and `WORLD_SIZE`; the launcher is started by
`launcher_supervisor`, which is the supervised child and reads what each process leaves in `FOLDER/ranks`:

    <rank>.json          {status: running | done | stopped | failed, pid, time, …}
    <rank>.events.jsonl  events of a process other than the first; those of the first are the run's own

A stop request is noted in every process, and the program of rank 0 decides when to act on it. All of them end with 0
when the training is done or stopped: a launcher treats every other code as a failure and kills the rest.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path

import orjson
import psutil

from trainyard.compute import child
from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.stores.whole import write_json_durably
from trainyard.workers.trainyard_worker.contract import LOST

RANKS_FOLDER, MEETING_FILE = "ranks", "meeting"
LAUNCHER_VARIABLE = "TRAINYARD_RANKS_PID"
"""Names the program that started the launcher, so that a late process sees whether that is still running."""
LEADER = 0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def write_note(folder: Path, rank: int, status: str, **fields: object) -> None:
    """Write this process's status, so that a reader sees all of it or nothing."""
    ranks_folder = folder / RANKS_FOLDER
    ranks_folder.mkdir(exist_ok=True)
    write_json_durably(
        ranks_folder / f"{rank}.json", {"status": status, "pid": os.getpid(), "time": time.time(), **fields}
    )


def read_notes(folder: Path) -> dict[int, JsonObject]:
    """Rank -> what it noted last."""
    return {int(path.stem): orjson.loads(path.read_bytes()) for path in (folder / RANKS_FOLDER).glob("[0-9]*.json")}


def record_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Note why this process fails; `lost` when it only noticed that another one is gone."""
    traceback.print_exc()
    trainyard_error = error if isinstance(error, TrainyardError) else child.crash_error(error)
    lost = not isinstance(error, TrainyardError) and any(word in str(error) for word in LOST)
    write_note(
        folder, rank, "failed", lost=lost, error={"kind": type(trainyard_error).__name__, **trainyard_error.as_dict()}
    )


def running(pid: int) -> bool:
    """Return whether a process is running; a killed one keeps its pid until its parent reads its exit code."""
    try:
        return child.alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def main(target: str, where: str) -> None:
    rank, folder = int(os.environ["RANK"]), Path(where)
    events_file = folder / child.EVENTS_FILE if rank == LEADER else folder / RANKS_FOLDER / f"{rank}.events.jsonl"
    parent = os.getppid()
    events = child.Events(events_file, parent)
    for number in STOP_SIGNALS:
        signal.signal(number, events.request_stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the launcher was started with them blocked
    child.prctl(child.PR_SET_PDEATHSIG, signal.SIGTERM)
    supervisor = os.environ.get(LAUNCHER_VARIABLE)  # not set where the launcher was started by hand
    if supervisor is not None and not running(int(supervisor)):
        # It died before the line above, and the launcher with it: no signal will come.
        events.request_stop()
    write_note(folder, rank, "running")
    try:
        load_object(target)(folder, events)
        write_note(folder, rank, "done")
    except child.Stopped as stopped:
        write_note(folder, rank, "stopped", reason=stopped.reason, fields=stopped.fields)
    except Exception as error:
        record_failure(folder, rank, error)
        sys.exit(child.FAILED_EXIT)
    finally:
        events.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
