"""Who trains: the table of backends, the protocol that all of them speak, and one way to run any of them.

A *local* backend is a program that fulfils the contract of `trainyard.compute.child`: it reads `spec.json` (a
`TrainingJob`) and leaves `result/adapter` or `result/model` with a `training.json`. Its module says how it is started;
`LocalBackend` does the rest for all of them. This module imports no torch; the program does.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Protocol, cast, runtime_checkable

from trainyard.backends.job import TrainingJob, adopt_earlier_work
from trainyard.backends.results import (
    CHECKPOINT_FOLDER,
    DECISIONS_FILE,
    FITTED_FILE,
    KEPT_FACTS,
    RESULT_FOLDER,
    TRAINING_FILE,
    Listener,
    Start,
    TrainingStopped,
    collect,
    count_starts,
    failure,
    rebuilt,
    unless_stopped,
)
from trainyard.backends.states import CANCELED, COMPLETED, FAILED, PAUSED, PENDING, RUNNING, JobStatus, after, replayed
from trainyard.compute.child import EVENTS_FILE, SPEC_FILE
from trainyard.compute.events import Event, read_events
from trainyard.compute.lease import job_lock
from trainyard.compute.supervise import DesiredState, Outcome, Status, always_run, ignore, supervise
from trainyard.errors import Conflict, NotFound, Reason, Refused, Unavailable
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.stores.artifacts import Produced, write_json_durably

__all__ = [
    "BACKENDS",
    "CHECKPOINT_FOLDER",
    "DECISIONS_FILE",
    "FITTED_FILE",
    "KEPT_FACTS",
    "RESULT_FOLDER",
    "TRAINING_FILE",
    "Backend",
    "Handle",
    "LocalBackend",
    "Options",
    "Probe",
    "Program",
    "TrainingStopped",
    "load",
    "probe",
    "probe_all",
    "rebuilt",
    "run_training",
    "work_folder",
]


@dataclass(frozen=True)
class Probe:
    """Whether a backend can be used on this machine, and if not, what to do."""

    available: bool
    version: str = ""
    why: str = ""
    fix: str = ""
    code: str = "R-BACKEND-MISSING"
    """What a job that needs it is refused with."""


class Program(Protocol):
    """What a local backend offers: see `backends/programs.py`. It imports fast: neither torch nor its tool."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether it can run here, without importing anything heavy."""

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """All reasons why it cannot run this job; empty if it can."""

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """argv of the supervised program that runs the job in `folder`."""

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """What the program needs in its environment beside ours."""


@runtime_checkable
class Preparing(Protocol):
    """A backend that also writes files into the work folder before its program is started."""

    def prepare(self, job: TrainingJob, folder: Path) -> None:
        """Write what the program reads beside `spec.json`; called at every start."""


@dataclass(frozen=True)
class Handle:
    """A submitted job: enough to ask for it again, from another process too."""

    id: str
    folder: Path


class Backend(Protocol):
    """What a trainer can be asked, on this machine and on another alike."""

    def probe(self) -> Probe:
        """Whether it can be used now."""

    def submit(self, job: TrainingJob, folder: Path) -> Handle:
        """Start the job with `folder` as its work folder, and return at once."""

    def status(self, handle: Handle) -> JobStatus:
        """Where the job stands."""

    def cancel(self, handle: Handle) -> None:
        """Ask it to save and end; returns at once, and may be called twice."""

    def fetch(self, handle: Handle, folder: Path) -> Produced:
        """Move the finished result to `folder`. Raises the training's own error if there is none."""


BACKENDS: dict[BackendName, str] = {name: f"trainyard.backends.{name.value}.backend" for name in BackendName}
"""Name -> module of the backend, whose `BACKEND` is its program. It is imported without its tool."""


def load(name: BackendName, settings: Settings | None = None) -> Program:
    """The program of that name. Raises `Unavailable` (`R-BACKEND-MISSING`) with what to do."""
    found = probe(name, settings)
    if not found.available:
        what = f"The backend {name.value!r} is not available."
        raise Unavailable(what, why=found.why, do=found.fix, code=found.code)
    return cast(Program, importlib.import_module(BACKENDS[name]).BACKEND)


def probe(name: BackendName, settings: Settings | None = None) -> Probe:
    """Whether a backend can be used here; never raises."""
    found = importlib.util.find_spec(BACKENDS[name])
    if found is None or found.origin is None:  # no folder, or one without a module
        return Probe(False, why=f"This installation has no module for {name.value}.", fix="Install trainyard again.")
    return cast(Program, importlib.import_module(BACKENDS[name]).BACKEND).probe(settings)


def probe_all(settings: Settings | None = None) -> dict[BackendName, Probe]:
    """Every backend's probe, for `plan` and `doctor`."""
    return {name: probe(name, settings) for name in BackendName}


def work_folder(job: TrainingJob, settings: Settings) -> Path:
    return settings.runs / "training" / job.digest[:32]


class Abandoned(Exception):
    """Whoever waited for the training is gone; ends the supervision, which ends the child."""


@dataclass(frozen=True)
class Options:
    """How a local training is watched."""

    budget_s: float | None = None
    """Default: the job's own budget."""
    grace_s: float = 300
    poll_s: float = 0.5


class Running:
    """A supervised training of this process: its thread, what it said last, and what is wanted of it.

    The thread that starts the child watches it to its end: the kernel signals a child when that thread ends.
    """

    def __init__(self, job: TrainingJob, folder: Path, program: Program, options: Options) -> None:
        self.job, self.folder, self.program, self.options = job, folder, program, options
        self.status = JobStatus()
        self.attempts = count_starts(folder)
        self.listener = Listener(self.note)
        self.news: SimpleQueue[Event | None] = SimpleQueue()
        """Events in order; None after the last one."""
        self.wanted, self.abandoned = DesiredState.RUN, Flag()
        self.outcome: Outcome | None = None
        self.broke: BaseException | None = None
        self.thread = Thread(target=self.run, name=f"training-{job.digest[:8]}", daemon=True)

    def run(self) -> None:
        """Supervise the child to its end; whatever happens here is told by `fetch`."""
        try:
            self.outcome = supervise(
                self.program.command(self.job, self.folder),
                self.folder,
                env=self.program.environment(self.job),
                wanted=self.answer,
                on_event=self.listener,
                budget_s=self.options.budget_s or self.job.config.budget_s,
                grace_s=self.options.grace_s,
                poll_s=self.options.poll_s,
            )
            self.status = ended_as(self.status, self.outcome)
        except BaseException as error:  # it belongs to the thread that asked for the training
            self.broke = error
            self.status = self.status.to(FAILED, str(error))
        finally:
            self.news.put(None)

    def note(self, event: Event) -> None:
        self.status = after(self.status, event)
        self.news.put(event)

    def answer(self) -> DesiredState:
        if self.abandoned.is_set():
            raise Abandoned
        return self.wanted

    def ask(self, wanted: DesiredState) -> None:
        """Pass a wish on; a cancel is not taken back by a later pause."""
        if self.wanted is not DesiredState.CANCEL and wanted is not DesiredState.RUN:
            self.wanted = wanted

    def abandon(self) -> None:
        """End the child now, with little time for saving, and wait for it."""
        self.abandoned.set()
        self.thread.join()

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event; an empty one when none came in time, None when the training is over."""
        try:
            return self.news.get(timeout=timeout_s)
        except Empty:
            return {}


def ended_as(status: JobStatus, outcome: Outcome) -> JobStatus:
    """What the end of a child means for its job."""
    if status.state is PENDING:
        status = status.to(RUNNING)  # it ended before its first event
    if outcome.status is Status.DONE:
        return status.to(COMPLETED)
    if outcome.status is Status.FAILED:
        assert outcome.error is not None
        return status.to(FAILED, f"{outcome.error['code']}: {outcome.error['what']}")
    states = {"cancel": CANCELED, "pause": PAUSED, "budget": PAUSED}
    preempted = "preempted; it continues when it is started again"
    return status.to(states.get(outcome.reason, PENDING), outcome.reason if outcome.reason in states else preempted)


class LocalBackend:
    """A trainer of this machine: the protocol over supervised child processes."""

    def __init__(self, name: BackendName, settings: Settings) -> None:
        self.name, self.settings = name, settings
        self.running: dict[str, Running] = {}

    def probe(self) -> Probe:
        return probe(self.name, self.settings)

    def submit(self, job: TrainingJob, folder: Path, options: Options = Options()) -> Handle:
        """Start the job. Raises `Unavailable` (no such backend here) or `Refused` (it cannot run this job)."""
        program = self.check(job)
        folder.mkdir(parents=True, exist_ok=True)
        write_json_durably(folder / SPEC_FILE, job.model_dump(mode="json"))
        if isinstance(program, Preparing):
            program.prepare(job, folder)
        handle = Handle(job.digest[:32], folder)
        self.running[handle.id] = running = Running(job, folder, program, options)
        running.thread.start()
        return handle

    def check(self, job: TrainingJob) -> Program:
        """The module that would run the job. Raises `Unavailable` or `Refused`, with all reasons."""
        program = load(self.name, self.settings)
        if found := program.reasons(job):
            raise Refused(found)
        return program

    def status(self, handle: Handle) -> JobStatus:
        """Where a job stands; of a job that another process submitted, what its events say."""
        running = self.running.get(handle.id)
        return running.status if running else replayed(read_events(handle.folder / EVENTS_FILE))

    def cancel(self, handle: Handle, wanted: DesiredState = DesiredState.CANCEL) -> None:
        """Ask a job of this process to save and end; `wanted` may be PAUSE."""
        self.mine(handle).ask(wanted)

    def fetch(self, handle: Handle, folder: Path) -> Produced:
        """Move the result to `folder/adapter` or `folder/model`.

        Raises `Conflict` (`E-JOB-STATE`) while it runs, `TrainingStopped` if it was asked to stop, and the child's
        own error if it failed.
        """
        running = self.mine(handle)
        if running.thread.is_alive():
            raise Conflict(
                f"The job {handle.id} is {running.status.state}; it has no result yet.",
                do="Wait for its end.",
                code="E-JOB-STATE",
            )
        if running.broke is not None:
            raise running.broke
        assert running.outcome is not None
        if running.outcome.status is not Status.DONE:
            raise failure(running.outcome, running.listener, running.folder)
        start = Start(running.listener, running.attempts, self.probe().version)
        return collect(running.job, running.folder, folder, start)

    def mine(self, handle: Handle) -> Running:
        """What this process knows of a job. Raises `NotFound` (`E-JOB-NOT-FOUND`) for another's."""
        if handle.id not in self.running:
            raise NotFound(
                f"The job {handle.id} was not started by this process.",
                do="Ask where it was started, or start it again: it continues.",
                code="E-JOB-NOT-FOUND",
            )
        return self.running[handle.id]


def follow(running: Running, wanted: Callable[[], DesiredState], on_event: Callable[[Event], None]) -> None:
    """Wait for the end, handing events on and wishes in, on the calling thread.

    Raises only what `wanted` or `on_event` raise, after the child has been ended.
    """
    try:
        while (event := running.next_event(running.options.poll_s)) is not None:
            if event:
                on_event(event)
            running.ask(wanted())
        running.thread.join()
    except BaseException:
        running.abandon()
        raise


def run_training(
    job: TrainingJob,
    folder: Path,
    *,
    wanted: Callable[[], DesiredState] = always_run,
    on_event: Callable[[Event], None] = ignore,
    settings: Settings,
    budget_s: float | None = None,
    grace_s: float = 300,
    poll_s: float = 0.5,
) -> Produced:
    """Train in a supervised child and move what it made to `folder/adapter` or `folder/model`.

    `budget_s` defaults to the job's own budget. Raises `Unavailable` (no such backend here), `Refused` (the backend
    cannot run this job), `TrainingStopped` (asked to; a checkpoint is kept), and the child's own error otherwise.
    """
    backend, place = LocalBackend(job.config.backend, settings), work_folder(job, settings)
    backend.check(job)  # before any file: what is refused leaves nothing behind
    lock = job_lock(settings, place, run=job.run, give_up=lambda: wanted() is not DesiredState.RUN)
    with unless_stopped(lock, wanted, "The training was stopped while the same one was running elsewhere."):
        if earlier := adopt_earlier_work(place, settings):
            on_event({"event": "adopted_work", "earlier": earlier.name, "work": place.name})
        handle = backend.submit(job, place, Options(budget_s, grace_s, poll_s))
        follow(backend.mine(handle), wanted, on_event)
        return backend.fetch(handle, folder)
