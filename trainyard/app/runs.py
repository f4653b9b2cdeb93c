"""Runs on a Prefect server, as the operations of the app use them: one typed client, connected on demand.

`RunsClient` is everything that `trainyard.app` does with Prefect. `trainyard/prefect_api/client.py` implements it, and
`connect_runs` is the only place of the app that imports it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event
from typing import Protocol, TypedDict

from trainyard.app.run_records import RunResult
from trainyard.app.services import certificate_variables, prefect_environment, require_api_url
from trainyard.callbacks import ignore
from trainyard.compute.events import Event as ProgressEvent
from trainyard.loading import load_object
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobPage, JobQuery, Row


class LogRow(TypedDict):
    """A line of a run's log."""

    time: float
    """In seconds of the epoch."""
    level: int
    text: str


class RunsClient(Protocol):
    """Runs, their states and logs, and the objects of the server that runs need.

    Every method raises `Unavailable` (`E-SERVER-UNREACHABLE`) if the server does not answer, and those that name a run
    raise `NotFound` (`E-JOB-NOT-FOUND`).
    """

    # Read

    def find_job(self, name: str, tenant: str = "") -> Row:
        """Return the one job of that id, run id, name, or beginning of one of them.

        Raises `Conflict` (`E-JOB-NOT-FOUND`) naming the candidates.
        """

    def select_jobs(self, query: JobQuery, runs: Path) -> JobPage:
        """Return the jobs of a query, the newest first; facts that parameters lack are in the folders of `runs`."""

    def list_tagged(self, tag: str, limit: int | None = None, offset: int = 0) -> list[Row]:
        """Return the runs with a tag, the newest first, each with `ended`."""

    def select_ended(self, run_ids: Iterable[str]) -> set[str]:
        """Return those of these runs that have ended."""

    def find_deployment(self, run_id: str) -> str:
        """Return the deployment that started a run, such as `qa-pipeline/local`; empty if it was removed."""

    def state_of_run(self, run_id: str) -> JobState:
        """Return the state of a run."""

    def read_log(self, run_id: str, offset: int = 0, most: int | None = None) -> list[LogRow]:
        """Return at most `most` lines of a run's log from an offset on, in order."""

    # Start and follow

    def start_run(
        self,
        name: str,
        parameters: Mapping[str, object],
        *,
        tags: tuple[str, ...] = (),
        waits: str = "",
        called: str = "",
        key: str = "",
        queue: str = "",
    ) -> RunResult:
        """Create a run of a deployment, in a work queue of its pool.

        Raises `Conflict` (`E-CONFLICT`) for a key that has other parameters.
        """

    def continue_run(self, run_id: str) -> RunResult:
        """Start an ended run again. Raises `Conflict` (`E-JOB-STATE`) for a run that has not ended."""

    def watch_run(
        self, run_id: str, *, on_progress: Callable[[ProgressEvent], None] = ignore, since: float = 0.0
    ) -> RunResult:
        """Follow a run to its end and report its events after `since`, in seconds of the epoch."""

    # Control: each raises `Conflict` (`E-JOB-STATE`) if the state of the run does not allow it

    def pause_run(self, run_id: str) -> None:
        """Suspend a running run after its training has saved."""

    def resume_run(self, run_id: str) -> None:
        """Continue a run that is paused, failed, crashed, cancelled, or waits for its trainer."""

    def cancel_run(self, run_id: str) -> None:
        """End a run after its training has saved."""

    def continue_unless_running(self, run_id: str) -> str:
        """Continue a run wherever it was left; return `running`, `completed` or `continued`."""

    # The server's objects and its index

    def crash_dead_runs(self, worker: str) -> list[str]:
        """Settle the runs whose process on this machine is gone; return their ids."""

    def free_unheld_slots(self) -> list[int]:
        """Free device slots that no living run has; return the devices."""

    def bootstrap(self) -> None:
        """Write the work pool, the device limits and the automations."""

    def ensure_alerts(self) -> None:
        """Write the blocks and automations of the configured alerts."""

    def synchronize_jobs(self, say: Callable[[str], None], stop: Event) -> None:
        """Keep the index of jobs in step with the server until `stop` is set."""


CLIENT = "trainyard.prefect_api.client:connect"
"""Named, not imported: Prefect takes seconds, and `prefect_api` imports `app`. Its type is checked there."""
IMPORTING = threading.RLock()
"""Prefect's modules import each other in circles: two threads that begin at once see modules without their names."""


def connect_runs(settings: Settings) -> RunsClient:
    """Return the client of the settings' Prefect server.

    Raises what `require_api_url` raises, before Prefect is imported. Prefect reads its variables when it is imported.
    """
    url = require_api_url(settings)
    os.environ.update(certificate_variables(settings, url) | prefect_environment(settings, url))
    with IMPORTING:
        connect: Callable[[Settings], RunsClient] = load_object(CLIENT)
    return connect(settings)
