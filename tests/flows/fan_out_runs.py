"""A chain whose validator works in pieces, in a process of its own, and one that kills its workers.

    python -m tests.flows.fan_out_runs KILLS CHAIN

The environment has the Prefect server and the settings, with `TRAINYARD_FAN_OUT`. KILLS is how many workers are killed
in the middle of a piece. Prints one line of JSON: what the run left, and what it left running.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from prefect.client.schemas.objects import State

from flows.chain import chain
from trainyard.app.run_records import read_events, read_result
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.stores.artifacts import open_reference

POLL_S = 0.01
TRACKER = "multiprocessing.resource_tracker"
"""Python's own helper of spawned processes, which ends with its parent."""


class Killer(threading.Thread):
    """Kills processes with SIGKILL while they have the working file of a piece open."""

    def __init__(self, kills: int) -> None:
        super().__init__(daemon=True)
        self.left, self.killed, self.ended = kills, list[int](), False

    def run(self) -> None:
        while self.left and not self.ended:
            for process in psutil.Process().children(recursive=True):
                if process.pid not in self.killed and has_piece_open(process):
                    process.kill()
                    self.killed.append(process.pid)
                    self.left -= 1
                    break
            time.sleep(POLL_S)


def has_piece_open(process: psutil.Process) -> bool:
    try:
        files = [str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    except OSError:
        return False
    return any("/.pieces/" in path and path.endswith("/work.arrow") for path in files)


def digest(folder: Path) -> str:
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            hasher.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return hasher.hexdigest()


def describe(state: State[Any]) -> dict[str, Any]:
    run = settings().runs / str(state.state_details.flow_run_id)
    record = read_result(run)
    outputs = {
        f"{node.id}.{port.value}": digest(open_reference(reference))
        for node in (record.nodes if record else ())
        for port, reference in node.outputs.items()
    }
    texts = [event["text"] for event in read_events(run) if event["event"] in ("note", "warning")] if record else []
    return {"state": state.name, "message": state.message, "outputs": outputs, "texts": texts}


def list_left() -> list[str]:
    """Return the commands of the processes that are still there, zombies and Python's own left out."""
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if line and TRACKER not in line:
            left.append(line)
    return left


def main(kills: str, spec: str) -> None:
    killer = Killer(int(kills))
    killer.start()

    async def run() -> State[Any]:
        return await chain(ChainSpec.model_validate(json.loads(spec)), return_state=True)

    started = time.monotonic()
    state = asyncio.run(run())
    seconds = time.monotonic() - started
    killer.ended = True
    killer.join()
    ports = [c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    print(json.dumps({**describe(state), "killed": len(killer.killed), "left": list_left(), "ports": ports,
                      "seconds": round(seconds, 1)}))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
