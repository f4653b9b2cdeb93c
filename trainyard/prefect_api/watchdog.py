"""The watchdog of one home: `python -m trainyard.prefect_api.watchdog`, started by `trainyard up`.

Every ten seconds it ends supervised children whose parent died without them, and settles the runs of this machine
whose process is gone. Prefect's automation does the latter by missing heartbeats, from anywhere and after 90 s; this
looks at the process itself. It also takes back what the automation got wrong: after an outage of the server of more
than 90 s no heartbeat has arrived, and every run reads crashed. At six in the morning it checks whether a night
succeeded. It waits for a server that is away, restarts services of this home that died, and removes what killed
runs have left in the home's temporary folder.
"""

from __future__ import annotations

import threading
import time

import httpx
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Running

from trainyard.app.artifacts.anchors import anchor_due
from trainyard.app.gpus import release_due
from trainyard.app.run_records import read_result
from trainyard.app.services import worker_name
from trainyard.compute.leftovers import Sweeper, sweep_leftovers
from trainyard.errors import Unavailable
from trainyard.prefect_api.alerts import DiskWatch, GpuWatch, NightWatch
from trainyard.prefect_api.operating import (
    find_process,
    list_dead_runs,
    list_never_started,
    list_runs,
    schedule_again,
    write_end_state,
)
from trainyard.prefect_api.reviving import Reviver, log_line
from trainyard.prefect_api.server import NO_HEARTBEAT, client
from trainyard.settings import Settings, load_settings

LOGGER = "trainyard.watchdog"
LOOK_EVERY_S = 10.0
WATCHED = [StateType.RUNNING, StateType.CANCELLING]
"""A pending run has no process of its own yet, or only the number of an earlier one."""


class Watchdog:
    """Looks again and again; a run counts as dead when two looks in a row found the same process gone."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sweeper, self.reviver = Sweeper(settings.home), Reviver(settings)
        self.nights, self.disk, self.gpus = NightWatch(settings), DiskWatch(settings), GpuWatch(settings)
        self.suspects: set[tuple[str, str]] = set()
        """(run, its process) that the last look found dead."""

    def look(self) -> list[str]:
        """Return the actions taken, in sentences."""
        done = [f"ended the orphan {pid}" for pid in self.sweeper.look()]
        done += [*self.reviver.look(), *sweep_leftovers(self.settings.home)]
        try:
            done += self.settle_dead() + self.schedule_unstarted()
            return done + self.correct_automation() + self.nights.look() + self.disk.look() + self.gpus.look()
        except (Unavailable, httpx.HTTPError, PrefectHTTPStatusError) as error:
            return [*done, f"the server does not answer: {error}"]

    def settle_dead(self) -> list[str]:
        unfinished = list_dead_runs(self.settings, worker_name(self.settings), WATCHED)
        # Without the number of a process nothing can be said about it.
        dead = {(str(run.id), str(run.infrastructure_pid)): run for run in unfinished if run.infrastructure_pid}
        certain = [run for key, run in dead.items() if key in self.suspects]
        self.suspects = set(dead)
        for run in certain:
            write_end_state(run, self.settings)
        return [f"the run {run.id} ({run.name}) had lost its process {run.infrastructure_pid}" for run in certain]

    def schedule_unstarted(self) -> list[str]:
        """Runs that a worker took and did not start before it, or the server, was killed."""
        stuck = list_never_started(self.settings, worker_name(self.settings))
        for run in stuck:
            schedule_again(run)
        return [f"the run {run.id} ({run.name}) was taken and never started; it is scheduled again" for run in stuck]

    def correct_automation(self) -> list[str]:
        """Runs that the automation marked as crashed and whose process works, or had finished everything."""
        crashed = list_runs(self.settings, worker_name(self.settings), [StateType.CRASHED], recent=True)
        marked = [run for run in crashed if run.state and (run.state.message or "").startswith(NO_HEARTBEAT)]
        living = [run for run in marked if find_process(run)]
        results = {run.id: read_result(self.settings.runs / str(run.id)) for run in marked if run not in living}
        finished = [run for run in marked if (ended := results.get(run.id)) is not None and ended.succeeded]
        for run in living:
            state: State[object] = Running(
                message="Its process is running; the server had received no heartbeat from it."
            )
            with client() as prefect:
                prefect.set_flow_run_state(run.id, state, force=True)
        for run in finished:
            write_end_state(run, self.settings)
        messages = [f"the run {run.id} ({run.name}) was marked as crashed and works" for run in living]
        return messages + [f"the run {run.id} ({run.name}) was marked as crashed and had finished" for run in finished]


class AnchorWatch:
    """Anchors the ledger on a thread of its own: an anchor that does not answer delays no look."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.thread: threading.Thread | None = None

    def look(self) -> None:
        if self.settings.ledger_anchor_every and (self.thread is None or not self.thread.is_alive()):
            self.thread = threading.Thread(target=anchor_due, args=(self.settings, self.say), daemon=True)
            self.thread.start()

    def say(self, sentence: str) -> None:
        print(log_line(self.settings, LOGGER, sentence), flush=True)


def main() -> None:
    """Look until this process is ended."""
    settings = load_settings()
    watchdog, anchoring = Watchdog(settings), AnchorWatch(settings)
    while True:
        sentences = watchdog.look()
        release_due(settings, sentences.append)
        anchoring.look()
        for sentence in sentences:
            print(log_line(settings, LOGGER, sentence), flush=True)
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main()
