"""The Prefect client of the app: `RunsClient` over the modules of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event

from trainyard.app.run_records import RunResult
from trainyard.app.runs import LogRow, RunsClient
from trainyard.callbacks import ignore
from trainyard.prefect_api import listing, operating, server, slots, watching
from trainyard.prefect_api.alerts import ensure_alerts
from trainyard.prefect_api.synchronizing import Synchronizer
from trainyard.prefect_api.watching import OnProgress
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobPage, JobQuery, Row


class PrefectRuns:
    """Runs on the Prefect server of some settings; see `trainyard.app.runs.RunsClient`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def find_job(self, name: str, tenant: str = "") -> Row:
        return listing.find_job(name, tenant)

    def select_jobs(self, query: JobQuery, runs: Path) -> JobPage:
        return listing.select_jobs(query, runs)

    def list_tagged(self, tag: str, limit: int | None = None, offset: int = 0) -> list[Row]:
        return listing.list_tagged(tag, limit, offset)

    def select_ended(self, run_ids: Iterable[str]) -> set[str]:
        return listing.select_ended(run_ids)

    def find_deployment(self, run_id: str) -> str:
        return listing.find_deployment(run_id)

    def state_of_run(self, run_id: str) -> JobState:
        return operating.state_of_run(run_id)

    def read_log(self, run_id: str, offset: int = 0, most: int | None = None) -> list[LogRow]:
        return listing.read_log(run_id, offset, most)

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
        return watching.start_run(
            name, parameters, settings=self.settings, tags=tags, waits=waits, called=called, key=key, queue=queue
        )

    def continue_run(self, run_id: str) -> RunResult:
        return watching.continue_run(run_id)

    def watch_run(self, run_id: str, *, on_progress: OnProgress = ignore, since: float = 0.0) -> RunResult:
        return watching.watch(run_id, settings=self.settings, on_progress=on_progress, since=since)

    def pause_run(self, run_id: str) -> None:
        operating.pause_run(run_id)

    def resume_run(self, run_id: str) -> None:
        operating.resume_run(run_id)

    def cancel_run(self, run_id: str) -> None:
        operating.cancel_run(run_id)

    def continue_unless_running(self, run_id: str) -> str:
        return operating.continue_unless_running(run_id, self.settings)

    def crash_dead_runs(self, worker: str) -> list[str]:
        return operating.crash_dead_runs(self.settings, worker)

    def free_unheld_slots(self) -> list[int]:
        return slots.free_unheld_slots(self.settings)

    def bootstrap(self) -> None:
        server.bootstrap(self.settings)

    def ensure_alerts(self) -> None:
        ensure_alerts(self.settings)

    def synchronize_jobs(self, say: Callable[[str], None], stop: Event) -> None:
        Synchronizer(self.settings, say).run(stop)


connect: Callable[[Settings], RunsClient] = PrefectRuns
"""The client of the Prefect server of some settings; `trainyard.app.runs.connect_runs` loads it by this name."""
