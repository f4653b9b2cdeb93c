"""Training jobs from Python, without a server: submit, look, pause, cancel.

    manager = TrainingManager(settings())
    job_id = manager.submit_local(job)
    manager.status(job_id).progress.step

Jobs of one manager run one after another, and take the same device lock as the runs of a server. A job whose trainer
is not installed is recorded and left pending (*marker only*): it says what to install, and `resume` starts it once that
is done. A job lives in the process that submitted it; when that process ends, its trainer saves and ends, and the same
job continues where it is submitted next.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import RLock, Thread

from trainyard.backends.base import LocalBackend, Options, Probe, run_training, work_folder
from trainyard.backends.job import TrainingJob
from trainyard.backends.oom import remembered, train_within_memory
from trainyard.backends.results import TrainingStopped
from trainyard.backends.states import CANCELED, COMPLETED, FAILED, PAUSED, PENDING, RUNNING, JobStatus, moved
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.compute.lease import claim_devices
from trainyard.compute.supervise import DesiredState, ignore
from trainyard.errors import Conflict, NotFound, TrainyardError
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores import metrics as stored
from trainyard.stores.jobs import JobRecord, JobStore, new_job_id
from trainyard.stores.metrics import Point, TrainingMetrics, TrainingProgress

WAITING = "waiting for the device"
MARKER_ONLY = "no trainer installed"
STOPS = {DesiredState.PAUSE: PAUSED, DesiredState.CANCEL: CANCELED}
DETAILS = {DesiredState.PAUSE: "pausing", DesiredState.CANCEL: "cancelling"}


def marker_only(found: Probe) -> str:
    """Why a job that is recorded does not run."""
    return f"{MARKER_ONLY}: {found.why} {found.fix}".strip()


@dataclass
class Submitted:
    """A job of this process."""

    job: TrainingJob
    backend: LocalBackend
    wanted: DesiredState = DesiredState.RUN
    over: Flag = field(default_factory=Flag)
    """Set while no thread works on it."""


class TrainingManager:
    """The jobs of a home: those of this process can be steered, the list shows all that were recorded."""

    def __init__(self, settings: Settings, options: Options | None = None) -> None:
        self.settings, self.options = settings, options or Options()
        self.store = JobStore(settings.home / "jobs")
        self.submitted: dict[str, Submitted] = {}
        self.changing = RLock()

    def submit_local(self, job: TrainingJob, *, name: str = "") -> str:
        """Record a job and start it on this machine as soon as the device is free. Returns its id at once.

        Raises `Refused` with all reasons if the backend cannot carry it out, and `Conflict` (`E-JOB-STATE`) if this
        process works on the same job already.
        """
        one = Submitted(job, LocalBackend(job.config.backend, self.settings))
        one.over.set()
        self.refuse_twin(job)
        found = one.backend.probe()
        if found.available:
            one.backend.check(job)
        job_id = new_job_id()
        self.store.put(first_record(job_id, name, job, self.settings))
        self.submitted[job_id] = one
        self.begin(job_id, found)
        return job_id

    def status(self, job_id: str) -> JobStatus:
        """Where a job stands, how far it is and what it came to. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
        record = self.store.get(job_id)
        told = JobStatus(state=record.state, reason=record.detail)
        return told.model_copy(update={"progress": self.progress(job_id), "metrics": self.metrics(job_id)})

    def progress(self, job_id: str) -> TrainingProgress:
        """Step, epoch, totals, loss and learning rate of a job."""
        return stored.progress(read_events(self.events_file(job_id)))

    def metrics(self, job_id: str) -> TrainingMetrics:
        """Training loss, evaluation loss and working time of a job."""
        return stored.metrics(read_events(self.events_file(job_id)))

    def curve(self, job_id: str) -> list[Point]:
        """The loss of every step of a job, across restarts."""
        return stored.curve(read_events(self.events_file(job_id)))

    def list_jobs(self, state: JobState | None = None) -> list[JobRecord]:
        """Every recorded job, the newest first; of one state if it is given."""
        return self.store.list(state)

    def cancel(self, job_id: str) -> None:
        """Let a job save and end for good. Raises `Conflict` (`E-JOB-STATE`) if it is over."""
        self.stop(job_id, DesiredState.CANCEL)

    def pause(self, job_id: str) -> None:
        """Let a job save and end for now. Raises `Conflict` (`E-JOB-STATE`) if it neither runs nor waits."""
        self.stop(job_id, DesiredState.PAUSE)

    def resume(self, job_id: str) -> None:
        """Start a job again that is paused, failed or left pending. Raises `Conflict` (`E-JOB-STATE`) otherwise."""
        with self.changing:
            one, record = self.mine(job_id), self.store.get(job_id)
            if not one.over.is_set():
                raise Conflict(f"The job {job_id} is {record.state} and at work.", do="Wait.", code="E-JOB-STATE")
            if record.state is not PENDING:
                moved(record.state, PENDING)
            self.begin(job_id, one.backend.probe())

    def wait(self, job_id: str, timeout_s: float | None = None) -> JobStatus:
        """Wait until nothing works on a job any more, at most `timeout_s` seconds, and say where it stands."""
        self.mine(job_id).over.wait(timeout_s)
        return self.status(job_id)

    # how it is done

    def stop(self, job_id: str, wanted: DesiredState) -> None:
        with self.changing:
            one, record = self.mine(job_id), self.store.get(job_id)
            moved(record.state, STOPS[wanted])
            if one.over.is_set():
                self.note(job_id, STOPS[wanted], wanted.value)
            elif one.wanted is not DesiredState.CANCEL:
                one.wanted = wanted
                self.note(job_id, record.state, DETAILS[wanted])

    def begin(self, job_id: str, found: Probe) -> None:
        """Start the thread of a job; without its trainer, leave the job pending and say so."""
        one = self.submitted[job_id]
        if not found.available:
            self.note(job_id, PENDING, marker_only(found))
            return
        one.wanted = DesiredState.RUN
        one.over.clear()
        self.note(job_id, PENDING, WAITING)
        Thread(target=self.carry_out, args=(job_id, one), name=f"job-{job_id[:8]}", daemon=True).start()

    def carry_out(self, job_id: str, one: Submitted) -> None:
        """The life of one job, in a thread of its own; its end is in its record, whatever it was."""
        devices = one.job.devices
        claim = claim_devices(
            self.settings, len(devices), run=job_id, among=devices, give_up=lambda: one.wanted is not DesiredState.RUN
        )
        try:
            with claim:
                self.train(job_id, one)
        except TrainyardError as error:
            self.told(job_id, one, error)
        except Exception as error:
            self.note(job_id, FAILED, f"E-BUG: {type(error).__name__}: {error}")
            raise
        finally:
            one.over.set()

    def train(self, job_id: str, one: Submitted) -> None:
        """Train, with one more try if the memory does not suffice, and record where the result is."""
        with self.changing:
            if one.wanted is not DesiredState.RUN:
                raise TrainingStopped("The job was stopped before its first step.", why=one.wanted.value)
            self.note(job_id, RUNNING, "")
        folder = self.settings.home / "jobs" / job_id
        produced = train_within_memory(
            one.job,
            folder,
            wanted=lambda: one.wanted,
            on_event=ignore,
            settings=self.settings,
            train=partial(run_training, **asdict(self.options)),
        )
        self.note(job_id, COMPLETED, "", result=str(folder / one.job.output.value), facts=produced.facts)

    def told(self, job_id: str, one: Submitted, error: TrainyardError) -> None:
        """Record why a job did not finish."""
        waited = isinstance(error, Conflict) and one.wanted is not DesiredState.RUN  # it gave up waiting for the device
        reason = one.wanted.value if waited else error.why if isinstance(error, TrainingStopped) else ""
        if not reason:
            self.note(job_id, FAILED, f"{error.code}: {error.what}")
            return
        state = {"pause": PAUSED, "budget": PAUSED, "cancel": CANCELED}.get(reason, PENDING)
        self.note(job_id, state, reason if state is not PENDING else f"preempted: {reason}; resume continues it")

    def note(self, job_id: str, state: JobState, detail: str, **facts: object) -> None:
        """Write a job's state into its record, if the move is one."""
        with self.changing:
            record = self.store.get(job_id)
            if state is not record.state:
                moved(record.state, state)
            self.store.put(record.model_copy(update={"state": state, "detail": detail, **facts}))

    def refuse_twin(self, job: TrainingJob) -> None:
        for job_id, one in self.submitted.items():
            if one.job.digest == job.digest and not one.over.is_set():
                raise Conflict(
                    f"The same job is at work already: {job_id}.",
                    do="Wait for it, or cancel it first.",
                    code="E-JOB-STATE",
                )

    def mine(self, job_id: str) -> Submitted:
        """A job that this process submitted. Raises `NotFound` (`E-JOB-NOT-FOUND`) for any other."""
        if job_id not in self.submitted:
            raise NotFound(
                f"The job {job_id!r} was not submitted by this process.",
                do="Submit the same job again: it continues from its newest checkpoint.",
                code="E-JOB-NOT-FOUND",
            )
        return self.submitted[job_id]

    def events_file(self, job_id: str) -> Path:
        """The file of a job's events; of one that continues with a smaller batch, those of that training."""
        one = self.submitted.get(job_id)
        smaller = remembered(one.job, self.settings) if one else None
        work = work_folder(smaller, self.settings) if smaller else Path(self.store.get(job_id).work)
        return work / EVENTS_FILE


def first_record(job_id: str, name: str, job: TrainingJob, settings: Settings) -> JobRecord:
    config = job.config
    return JobRecord(
        id=job_id,
        name=name,
        stage=config.stage,
        method=config.method,
        backend=config.backend,
        base_model=config.base_model or job.base,
        work=str(work_folder(job, settings)),
    )
