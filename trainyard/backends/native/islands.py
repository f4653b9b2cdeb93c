"""A training on islands that may be lost: one supervised child starts the lighthouse and a process for each island.

    FOLDER/islands/<i>/     an island's own spec.json, events, log, checkpoints and result
    FOLDER/islands/start    all islands have loaded; none begins before

An island that is killed is started again, up to `MOST_RESTARTS` times: it continues from its own checkpoint, and takes
the state of a living island at its next exchange. The events and the result of the run are those of island 0.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

from trainyard.backends import frame
from trainyard.backends.native.assembly import set_determinism
from trainyard.backends.native.program import train_on_device
from trainyard.backends.results import RESULT_FOLDER
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.child import SPEC_FILE, Events, Stopped
from trainyard.compute.events import Event
from trainyard.compute.supervise import DesiredState, Outcome, Status, supervise
from trainyard.errors import from_fields
from trainyard.spec.axes.strategies import TorchftSettings
from trainyard.train.parallel.torchft_island import ISLAND_VARIABLE, LIGHTHOUSE_VARIABLE, LOOPBACK

ISLANDS_FOLDER, START_FILE, READY_FILE = "islands", "start", "ready"
ISLAND_PROGRAM = "trainyard.backends.native.islands:train_island"
MOST_RESTARTS = 10
POLL_S = 0.1
OWN_EVENTS = ("started", "done", "stopped", "failed")
"""Events of a child's life, which the run has of its own."""


def train(folder: Path, events: Events) -> None:
    """Run the job of `folder/spec.json` on its islands, to the end of all of them."""
    os.environ.setdefault("RUST_LOG", "warn")  # its servers log every heartbeat
    from torchft.coordination import LighthouseServer  # an extra

    job = frame.read_job(folder)
    settings = job.config.launch.diloco
    assert isinstance(settings, TorchftSettings), "asked by a job on islands of torchft"
    device = pick_device(job.config.device)
    with frame.lock_devices(job, folder, events, device):
        lighthouse = LighthouseServer(
            bind=f"{LOOPBACK}:0", min_replicas=settings.min_islands, join_timeout_ms=settings.timeout_s * 1000
        )
        root = folder / ISLANDS_FOLDER
        (root / START_FILE).unlink(missing_ok=True)
        address = lighthouse.address().replace(lighthouse.address().rpartition(":")[0], f"http://{LOOPBACK}")
        islands = [Island(root / str(number), address, folder, events) for number in range(settings.num_islands)]
        try:
            for island in islands:
                island.start()
            open_gate(root, islands)
            for island in islands:
                island.join()
        finally:
            lighthouse.shutdown()
    finish(folder, islands, events)


def open_gate(root: Path, islands: list[Island]) -> None:
    """Let the islands begin when all of them have loaded: the first would find no other to exchange weights with."""
    while any(island.is_alive() for island in islands):
        if all((island.folder / READY_FILE).exists() for island in islands):
            (root / START_FILE).touch()
            return
        time.sleep(POLL_S)


class Island(Thread):
    """A process of an island, started again when it is killed."""

    def __init__(self, folder: Path, lighthouse: str, job_folder: Path, events: Events) -> None:
        super().__init__(name=f"island-{folder.name}", daemon=True)
        self.folder, self.events = folder, events
        folder.mkdir(parents=True, exist_ok=True)
        (folder / READY_FILE).unlink(missing_ok=True)
        (folder / SPEC_FILE).write_bytes((job_folder / SPEC_FILE).read_bytes())
        self.variables = {ISLAND_VARIABLE: folder.name, LIGHTHOUSE_VARIABLE: lighthouse}
        self.outcome: Outcome | None = None

    def run(self) -> None:
        argv = [sys.executable, "-P", "-m", "trainyard.compute.launch", ISLAND_PROGRAM, str(self.folder)]
        inherited = {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}
        for attempt in range(MOST_RESTARTS + 1):
            self.outcome = supervise(
                argv,
                self.folder,
                env={**inherited, "GLOO_SOCKET_IFNAME": "lo", "RUST_LOG": "warn", **self.variables},
                desired_state=self.read_desired_state,
                on_event=self.hand_on,
                poll_s=POLL_S,
            )
            if self.outcome.status is not Status.FAILED or self.outcome.exit_code >= 0:
                return
            text = f"Island {self.folder.name} was ended from outside and starts again ({attempt + 1})."
            self.events.emit("warning", text=text)

    def read_desired_state(self) -> DesiredState:
        return DesiredState.PAUSE if self.events.stop_requested() else DesiredState.RUN

    def hand_on(self, event: Event) -> None:
        """Report the events of the first island."""
        if self.folder.name == "0" and event["event"] not in OWN_EVENTS:
            fields: dict[str, Any] = {name: value for name, value in event.items() if name not in ("event", "time")}
            self.events.emit(str(event["event"]), **fields)


def finish(folder: Path, islands: list[Island], events: Events) -> None:
    """Take the result of the first island. Raises `Stopped`, or the error of an island."""
    outcomes = [island.outcome for island in islands if island.outcome is not None]
    failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
    if failed and outcomes[0].status is not Status.DONE:
        raise from_fields(failed[0].error or {"what": "An island was ended again and again."})
    if any(outcome.status is Status.STOPPED for outcome in outcomes):
        raise Stopped("asked to stop; every island has a checkpoint")
    for outcome in failed:
        events.emit("warning", text=f"An island failed: {(outcome.error or {}).get('what', 'it was killed')}")
    os.replace(islands[0].folder / RESULT_FOLDER, folder / RESULT_FOLDER)


def train_island(folder: Path, events: Events) -> None:
    """Run one island, from its own checkpoint where there is one."""
    job = frame.read_job(folder)
    set_determinism(job)
    with frame.memory_errors_in_words():
        device = pick_device(job.config.device)
        train_on_device(job, folder, events, device, ready=lambda: wait_for_start(folder, events))


def wait_for_start(folder: Path, events: Events) -> None:
    """Report that this island has loaded, and wait for the others. Raises `Stopped`."""
    (folder / READY_FILE).touch()
    while not (folder.parent / START_FILE).exists():
        if events.stop_requested():
            raise Stopped("asked to stop before the start", step=0)
        time.sleep(POLL_S)
