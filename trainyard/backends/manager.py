"""Training jobs from Python, without a server: submit, look, pause, cancel.

    manager = TrainingManager(settings())
    job_id = manager.submit_local(job)
    manager.status(job_id).progress.step

Jobs of one device run one after another, and take the same device lock as the runs of a server. A job whose trainer
is not installed is recorded and left pending (*marker only*): it says what to install, and `resume` starts it once that
is done. A job lives in the process that submitted it; when that process ends, its trainer saves and ends, and the same
job continues where it is submitted next.

`LocalBackend` steers the trainings of this process and knows their states. `TrainingManager` gives each job an id and
writes every change of its state into `stores/jobs`; how far a job is, it reads from the events of the work folder, as
`trainyard jobs` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread

import psutil

from trainyard.backends import states
from trainyard.backends.base import Handle, Probe, check, probe, run_training, work_folder
from trainyard.backends.cloud.journal import is_open_at_provider, request_cancel, withdraw_cancel
from trainyard.backends.job import TrainingJob
from trainyard.backends.oom import follow_restarts, train_within_memory
from trainyard.backends.results import TrainingStopped, early_stop_text, enter_unless_stopped, move
from trainyard.callbacks import ignore
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import Event, read_events
from trainyard.compute.lease import Patience, claim_devices
from trainyard.compute.supervise import DesiredState
from trainyard.errors import Conflict, NotFound, TrainyardError
from trainyard.json_types import JsonMapping
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.states import JobState
from trainyard.stores import metrics as stored
from trainyard.stores.artifacts import Produced
from trainyard.stores.jobs import JobRecord, JobStore, SubmittingProcess, new_job_id
from trainyard.stores.metrics import Point, TrainingMetrics, TrainingProgress

NO_FACTS: JsonMapping = {}
WAITING = "waiting for the device"
MARKER_ONLY = "no trainer installed"
STOPS = {DesiredState.PAUSE: states.PAUSED, DesiredState.CANCEL: states.CANCELED}
DETAILS = {DesiredState.PAUSE: "pausing", DesiredState.CANCEL: "cancelling"}
ENDS = {"pause": states.PAUSED, "budget": states.PAUSED, "spend": states.PAUSED, "cancel": states.CANCELED}
"""Why a training stopped -> its state; any other reason is a preemption."""


def marker_only(probe_result: Probe) -> str:
    """Why a job that is recorded does not run."""
    return f"{MARKER_ONLY}: {probe_result.why} {probe_result.fix}".strip()


def events_file(work: Path) -> Path:
    """Return the events of a training by its work folder; after a smaller batch, those of that training."""
    return follow_restarts(work) / EVENTS_FILE


@dataclass(frozen=True)
class Options:
    """Supervision of a local training."""

    budget_s: float | None = None
    """Default: the job's own budget."""
    grace_s: float = 300
    poll_s: float = 0.5


@dataclass(eq=False)
class Running:
    """A training of this process: on a thread of its own it waits for its devices, trains, and fills a folder.

    The thread supervises the child to its end: the kernel signals a child when the thread that started it ends.
    """

    job: TrainingJob
    folder: Path
    settings: Settings
    options: Options
    on_change: Callable[[Running], None]
    status: states.JobStatus = field(default_factory=states.JobStatus)
    desired: DesiredState = DesiredState.RUN
    produced: Produced | None = None
    error: BaseException | None = None
    changing: Lock = field(default_factory=Lock)
    over: Flag = field(default_factory=Flag)
    """Set while no thread works on it."""

    def __post_init__(self) -> None:
        self.over.set()

    @property
    def work(self) -> Path:
        return work_folder(self.job, self.settings)

    def start(self) -> None:
        """Start it, or start it again; without its trainer it stays pending. Raises `Conflict` (`E-JOB-STATE`)."""
        with self.changing:
            if not self.over.is_set():
                raise Conflict(f"The job is {self.status.state} and running.", do="Wait.", code="E-JOB-STATE")
            withdraw_cancel(self.work)
            self.begin()

    def begin(self) -> None:
        """Start its thread; the lock is taken."""
        probe_result = probe(self.job.config.backend, self.settings)
        self.change(states.PENDING, WAITING if probe_result.available else marker_only(probe_result))
        if probe_result.available:
            self.desired, self.error = DesiredState.RUN, None
            self.over.clear()
            Thread(target=self.run, name=f"training-{self.job.digest[:8]}", daemon=True).start()

    def ask(self, desired: DesiredState) -> None:
        """Let it save and end; a cancel is not taken back by a later pause. Raises `Conflict` (`E-JOB-STATE`).

        One that its provider still trains is started once more, to end it there.
        """
        with self.changing:
            states.check_transition(self.status.state, STOPS[desired])
            if self.over.is_set() and desired is DesiredState.CANCEL and is_open_at_provider(self.work):
                request_cancel(self.work)
                self.begin()
            elif self.over.is_set():
                self.change(STOPS[desired], desired.value)
            elif self.desired is not DesiredState.CANCEL:
                self.desired = desired
                self.change(self.status.state, DETAILS[desired])

    def run(self) -> None:
        """The life of the training; its end is in its status, whatever it was."""
        state, reason = states.COMPLETED, ""
        try:
            self.produced = self.train()
            reason = early_stop_text(self.produced.facts)
        except TrainingStopped as error:
            self.error, state = error, ENDS.get(error.reason, states.PENDING)
            reason = error.reason if state is not states.PENDING else f"preempted: {error.reason}; resume continues it"
        except TrainyardError as error:
            self.error, state, reason = error, states.FAILED, f"{error.code}: {error.what}"
        except BaseException as error:
            self.error, state, reason = error, states.FAILED, f"E-BUG: {type(error).__name__}: {error}"
            raise
        finally:
            with self.changing:
                try:
                    self.change(state, reason)
                finally:
                    self.over.set()

    def train(self) -> Produced:
        devices = self.job.devices
        claim = claim_devices(
            self.settings,
            0 if self.job.config.backend.facts.remote else len(devices),
            run=self.folder.name,
            among=devices,
            patience=Patience(give_up=lambda: self.desired is not DesiredState.RUN),
        )
        with enter_unless_stopped(claim, self.get_desired, "The job was stopped while it waited for the device."):
            return train_within_memory(
                self.job,
                self.folder,
                desired_state=self.get_desired,
                on_event=self.note,
                settings=self.settings,
                train=partial(run_training, **asdict(self.options)),
            )

    def get_desired(self) -> DesiredState:
        return self.desired

    def note(self, event: Event) -> None:
        with self.changing:
            before, self.status = self.status, states.advance_status(self.status, event)
            if self.status.reason != before.reason:
                self.change(self.status.state, self.status.reason)

    def change(self, state: JobState, reason: str) -> None:
        """Change the state, or the reason of the same state; the lock is taken."""
        same = state is self.status.state
        self.status = self.status.model_copy(update={"reason": reason}) if same else self.status.to(state, reason)
        self.on_change(self)


class LocalBackend:
    """A trainer of this machine: the protocol `Backend` over supervised child processes."""

    def __init__(self, name: BackendName, settings: Settings, options: Options | None = None) -> None:
        self.name, self.settings, self.options = name, settings, options or Options()
        self.running: dict[Handle, Running] = {}

    def probe(self) -> Probe:
        return probe(self.name, self.settings)

    def submit(self, job: TrainingJob, folder: Path, on_change: Callable[[Running], None] = ignore) -> Handle:
        """Start the job; `on_change` is called at each change of its state. Without its trainer it stays pending.

        Raises `Refused` with all reasons if the trainer cannot run this job, and `Conflict` (`E-JOB-STATE`) if this
        process is running the same job.
        """
        if any(other.job.work_name == job.work_name and not other.over.is_set() for other in self.running.values()):
            raise Conflict(
                "The same job is running already.", do="Wait for it, or cancel it first.", code="E-JOB-STATE"
            )
        if self.probe().available:
            check(job, self.settings)
        handle = Handle(work_folder(job, self.settings).name, folder)
        self.running[handle] = Running(job, folder, self.settings, self.options, on_change)
        self.running[handle].start()
        return handle

    def status(self, handle: Handle) -> states.JobStatus:
        """Return the status of a job; for a job of another process, what its events say."""
        if handle in self.running:
            return self.running[handle].status
        return states.replay_events(read_events(events_file(self.settings.runs / "training" / handle.id)))

    def cancel(self, handle: Handle) -> None:
        """Let a job of this process save and end for good. Raises `Conflict` (`E-JOB-STATE`) if it is over."""
        self.find_own(handle).ask(DesiredState.CANCEL)

    def fetch(self, handle: Handle, folder: Path) -> Produced:
        """Move the result to `folder/adapter` or `folder/model`.

        Raises `Conflict` (`E-JOB-STATE`) while there is none, `TrainingStopped` if it was asked to stop, and the
        child's own error if it failed.
        """
        running = self.find_own(handle)
        if running.error is not None:
            raise running.error
        if running.produced is None:
            raise Conflict(
                f"The job {handle.id} is {running.status.state}; it has no result yet.",
                do="Wait for its end.",
                code="E-JOB-STATE",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for port in running.produced.outputs:
            move(handle.folder / port.value, folder / port.value)
        return running.produced

    def find_own(self, handle: Handle) -> Running:
        """Return a job that this process submitted. Raises `NotFound` (`E-JOB-NOT-FOUND`) for any other."""
        if handle not in self.running:
            raise NotFound(
                f"The job {handle.folder.name} was not submitted by this process.",
                do="Submit the same job again: it continues from its newest checkpoint.",
                code="E-JOB-NOT-FOUND",
            )
        return self.running[handle]


class TrainingManager:
    """The jobs of a home: those of this process can be steered, the list shows all that were recorded."""

    def __init__(self, settings: Settings, options: Options | None = None) -> None:
        self.settings, self.store = settings, JobStore(settings.home / "jobs")
        self.backends = {name: LocalBackend(name, settings, options) for name in BackendName}

    def submit_local(self, job: TrainingJob, *, name: str = "", facts: JsonMapping = NO_FACTS) -> str:
        """Record a job and start it on this machine as soon as the device is free. Returns its id at once.

        `facts` stay in its record. Raises what `LocalBackend.submit` raises; nothing is recorded then.
        """
        config = job.config
        record = JobRecord(
            id=new_job_id(),
            name=name,
            stage=config.stage.type,
            method=config.method.type,
            backend=config.backend,
            base_model=config.base_model or job.base,
            work=str(work_folder(job, self.settings)),
            tenant=self.settings.tenant,
            process=SubmittingProcess(pid=os.getpid(), started=psutil.Process().create_time()),
            created=time.time(),
            facts=dict(facts),
        )
        backend, folder = self.backends[config.backend], self.store.folder / record.id
        backend.submit(job, folder, lambda running: self.write_record(record, running))
        return record.id

    def write_record(self, record: JobRecord, running: Running) -> None:
        """Write a job's state into its record, and where its result is."""
        record = record.model_copy(update={"state": running.status.state, "detail": running.status.reason})
        if running.produced is not None:
            result = str(running.folder / running.job.output.value)
            record = record.model_copy(update={"result": result, "facts": {**record.facts, **running.produced.facts}})
        self.store.put(record)

    def status(self, job_id: str) -> states.JobStatus:
        """Return the state of a job, its progress and its result. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
        record = self.store.get(job_id)
        progress, metrics = self.progress(job_id), self.metrics(job_id)
        return states.JobStatus(state=record.state, reason=record.detail, progress=progress, metrics=metrics)

    def progress(self, job_id: str) -> TrainingProgress:
        """Step, epoch, totals, loss and learning rate of a job."""
        return stored.read_progress(read_events(self.events_file(job_id)))

    def metrics(self, job_id: str) -> TrainingMetrics:
        """Training loss, evaluation loss, working time and energy of a job."""
        metrics = stored.metrics(read_events(self.events_file(job_id)))
        return metrics.model_copy(update={"energy_j": self.store.get(job_id).facts.get("energy_j")})

    def curve(self, job_id: str) -> list[Point]:
        """Return the loss of every step of a job, across restarts."""
        return stored.read_curve(read_events(self.events_file(job_id)))

    def list_jobs(self, state: JobState | None = None) -> list[JobRecord]:
        """Return every recorded job, the newest first; of one state if it is given."""
        return self.store.list(state)

    def cancel(self, job_id: str) -> None:
        """Let a job save and end for good. Raises `Conflict` (`E-JOB-STATE`) if it is over."""
        self.find_own(job_id).ask(DesiredState.CANCEL)

    def pause(self, job_id: str) -> None:
        """Let a job save and end for now. Raises `Conflict` (`E-JOB-STATE`) if it neither runs nor waits."""
        self.find_own(job_id).ask(DesiredState.PAUSE)

    def resume(self, job_id: str) -> None:
        """Start a job again that is paused, failed or left pending. Raises `Conflict` (`E-JOB-STATE`) otherwise."""
        self.find_own(job_id).start()

    def wait(self, job_id: str, timeout_s: float | None = None) -> states.JobStatus:
        """Wait until nothing works on a job any more, at most `timeout_s` seconds, and return its status."""
        self.find_own(job_id).over.wait(timeout_s)
        return self.status(job_id)

    def find_own(self, job_id: str) -> Running:
        """Return a job that this process submitted. Raises `NotFound` (`E-JOB-NOT-FOUND`) for any other."""
        record = self.store.get(job_id)
        handle = Handle(Path(record.work).name, self.store.folder / job_id)
        return self.backends[record.backend].find_own(handle)

    def events_file(self, job_id: str) -> Path:
        """Return the file of a job's events."""
        return events_file(Path(self.store.get(job_id).work))
