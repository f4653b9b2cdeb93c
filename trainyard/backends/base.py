"""Backends: their table, the protocol that all of them implement, and one way to run any of them.

A *local* backend is a program that fulfils the contract of `trainyard.compute.child`: it reads `spec.json` (a
`TrainingJob`) and leaves `result/adapter` or `result/model` with a `training.json`. Its module says how it is started;
`run_training` does the rest for all of them. This module imports no torch; the program does.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from trainyard.backends.job import TrainingJob, adopt_earlier_work, read_job
from trainyard.backends.results import Listener, collect_result, count_starts, enter_unless_stopped, make_failure
from trainyard.backends.spending import meter_training
from trainyard.callbacks import ignore
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.events import Event
from trainyard.compute.lease import job_lock
from trainyard.compute.supervise import DesiredState, Status, keep_running, supervise
from trainyard.errors import Reason, Refused, Unavailable
from trainyard.settings import Settings
from trainyard.spec.axes.backends import CLOUD_PROVIDERS, STEP_SERVICES, BackendName
from trainyard.stores.artifacts import Produced
from trainyard.stores.whole import write_json_durably


@dataclass(frozen=True)
class Probe:
    """Availability of a backend on this machine, and if it is missing, what to do."""

    available: bool
    version: str = ""
    why: str = ""
    fix: str = ""
    code: str = "R-BACKEND-MISSING"
    """What a job that needs it is refused with."""


class Program(Protocol):
    """Protocol of a local backend: see `backends/programs.py`. It imports fast: neither torch nor its tool."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether it can run here, without importing anything heavy."""

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """Return all reasons why it cannot run this job; empty if it can."""

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """argv of the supervised program that runs the job in `folder`."""

    def prepare(self, job: TrainingJob, folder: Path) -> None:
        """Write what the program reads besides `spec.json`; called at every start."""

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """Return the program's environment variables in addition to Trainyard's own."""


@dataclass(frozen=True)
class Handle:
    """A submitted job: enough to ask for it again, from another process too."""

    id: str
    folder: Path


SERVICE_MODULES = {name: f"remote_steps.{name.value}" for name in STEP_SERVICES}
SERVICE_MODULES |= {name: f"cloud.{name.value}" for name in CLOUD_PROVIDERS}
BACKENDS: dict[BackendName, str] = {
    name: f"trainyard.backends.{SERVICE_MODULES.get(name, f'{name.value}.backend')}" for name in BackendName
}
"""Name -> module of the backend, whose `BACKEND` is its program. It is imported without its tool."""


def load_program(name: BackendName, settings: Settings | None = None) -> Program:
    """Return the program of that name. Raises `Unavailable` (`R-BACKEND-MISSING`) with what to do."""
    probe_result = probe(name, settings)
    if not probe_result.available:
        message = f"The backend {name.value!r} is not available."
        raise Unavailable(message, why=probe_result.why, do=probe_result.fix, code=probe_result.code)
    return cast(Program, importlib.import_module(BACKENDS[name]).BACKEND)


def probe(name: BackendName, settings: Settings | None = None) -> Probe:
    """Whether a backend can be used here; never raises."""
    module = importlib.util.find_spec(BACKENDS[name])
    if module is None or module.origin is None:  # no folder, or one without a module
        return Probe(False, why=f"This installation has no module for {name.value}.", fix="Install trainyard again.")
    return cast(Program, importlib.import_module(BACKENDS[name]).BACKEND).probe(settings)


def probe_all(settings: Settings | None = None) -> dict[BackendName, Probe]:
    """Return every backend's probe, for `plan` and `doctor`."""
    return {name: probe(name, settings) for name in BackendName}


def work_folder(job: TrainingJob, settings: Settings) -> Path:
    """Return where a job works: its checkpoints, log and metrics."""
    return settings.runs / "training" / job.work_name


def turn_folder(job: TrainingJob, settings: Settings) -> Path:
    """Return the folder that names the turn of equal jobs of one tenant."""
    return settings.runs / "training" / job.turn_name


def check(job: TrainingJob, settings: Settings) -> Program:
    """Return the program that would run the job. Raises `Unavailable` or `Refused`, with all reasons."""
    program = load_program(job.config.backend, settings)
    if reasons := program.reasons(job):
        raise Refused(reasons)
    return program


def keep_template_day(job: TrainingJob, work: Path) -> TrainingJob:
    """Return the job with the day on which it began here: rendered on another one its rows may have other tokens."""
    before = read_job(work)
    day = job.template_day or (before.template_day if before else "") or datetime.date.today().isoformat()
    return job.model_copy(update={"template_day": day})


def run_training(
    job: TrainingJob,
    folder: Path,
    *,
    desired_state: Callable[[], DesiredState] = keep_running,
    on_event: Callable[[Event], None] = ignore,
    settings: Settings,
    budget_s: float | None = None,
    grace_s: float = 300,
    poll_s: float = 0.5,
) -> Produced:
    """Train in a supervised child and move what it made to `folder/adapter` or `folder/model`.

    `budget_s` defaults to the job's own budget. `desired_state` and `on_event` are called on this thread, which must
    live as long as the child. Raises `Unavailable` (no such backend here), `Refused` (the backend cannot run this job),
    `TrainingStopped` (asked to; a checkpoint is kept), and the child's own error otherwise.
    """
    program, work = check(job, settings), work_folder(job, settings)  # what is refused leaves no file behind
    lock = job_lock(settings, work, run=job.run, give_up=lambda: desired_state() is not DesiredState.RUN)
    with enter_unless_stopped(
        lock, desired_state, "The training was stopped while the same one was running elsewhere."
    ):
        if earlier := adopt_earlier_work(work, job, settings):
            on_event({"event": "adopted_work", "earlier": earlier.name, "work": work.name})
        work.mkdir(parents=True, exist_ok=True)
        job = keep_template_day(job, work)
        write_json_durably(work / SPEC_FILE, job.model_dump(mode="json"))
        program.prepare(job, work)
        attempts = count_starts(work)
        with meter_training(job, settings, work, desired_state, on_event) as meter:
            listener = Listener(meter.on_event, job, work)
            outcome = supervise(
                program.command(job, work),
                work,
                env=program.environment(job),
                desired_state=meter.desired_state,
                on_event=listener,
                budget_s=budget_s or job.config.budget_s,
                grace_s=grace_s,
                poll_s=poll_s,
            )
            if outcome.status is not Status.DONE:
                raise make_failure(outcome, listener, work)
        version = probe(job.config.backend, settings).version
        return collect_result(job, work, folder, listener, attempts=attempts, version=version)
