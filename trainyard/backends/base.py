"""Who trains: the table of backends, and one way to run any of them.

A backend is a program that fulfils the contract of `trainyard.compute.child`: it reads `spec.json` (a `TrainingJob`)
and leaves `result/adapter` or `result/model` with a `training.json`. This module imports no torch; the program does.

The work folder `runs/training/<job digest>` outlives a killed run: it holds the checkpoints that a restarted trainer
continues from. A finished job leaves only its log and events there.
"""

from __future__ import annotations

import errno
import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from trainyard import errors
from trainyard.backends.job import TrainingJob
from trainyard.compute.child import EVENTS_FILE, LOG_FILE, SPEC_FILE
from trainyard.compute.supervise import Outcome, Status, Wanted, always_run, ignore, supervise
from trainyard.compute.tail import Event
from trainyard.errors import Reason, Refused, TrainyardError, Unavailable
from trainyard.settings import Settings
from trainyard.spec.axes import BackendName
from trainyard.stores.artifacts import Produced, ProducedSet, write_json_durably

TRAINING_FILE = "training.json"
RESULT_FOLDER, CHECKPOINT_FOLDER = "result", "checkpoints"
DECISIONS_FILE, FITTED_FILE = "decisions.json", "fitted.json"
"""What was measured at the first start (precision, free memory); a restart takes it from here."""
KEPT_FACTS = (
    "stage",
    "method",
    "steps",
    "first_loss",
    "final_loss",
    "tokens",
    "rows",
    "device",
    "precision",
    "seconds",
)


@dataclass(frozen=True)
class Probe:
    """Whether a backend can be used on this machine, and if not, what to do."""

    available: bool
    version: str = ""
    why: str = ""
    fix: str = ""


class Backend(Protocol):
    """What the module of a backend offers."""

    def probe(self) -> Probe:
        """Look whether it can run here, without importing anything heavy."""

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """All reasons why it cannot run this job; empty if it can."""

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """argv of the supervised program that runs the job in `folder`."""

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """What the program needs in its environment beside ours."""


BACKENDS: dict[BackendName, str] = {
    BackendName.NATIVE: "trainyard.backends.native",
    BackendName.TRL: "trainyard.backends.trl",
}
"""Name -> module of the backends that are built in."""

ABSENT: dict[BackendName, str] = {
    BackendName.UNSLOTH: "unsloth needs a CUDA device and its own environment, and is not connected yet.",
    BackendName.AXOLOTL: "axolotl needs its own environment, and is not connected yet.",
    BackendName.DEEPSPEED: "deepspeed needs several CUDA devices, and is not connected yet.",
    BackendName.MLX: "mlx trains on Apple silicon only, and is not connected yet.",
    BackendName.LLAMACPP: "llama.cpp serves models and does not train them here.",
    BackendName.SCRIPT: "Training scripts of your own are not connected yet.",
}
"""Name -> why it cannot be used."""


class TrainingStopped(TrainyardError):
    """The training stopped at a safe point because it was asked to; the same job continues from there."""

    default_code = "E-STOPPED"

    def __init__(self, what: str, *, why: str = "", do: str = "", code: str | None = None) -> None:
        super().__init__(what, why=why, do=do, code=code)

    @property
    def reason(self) -> str:
        """pause, cancel, budget, or what the child said."""
        return self.why


@dataclass
class Listener:
    """Remembers the events that matter for the result while handing all of them on."""

    on_event: Callable[[Event], None]
    begun: Event = field(default_factory=dict)
    stopped: Event = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if event["event"] == "begin":
            self.begun = event
        if event["event"] == "stopped":
            self.stopped = event
        self.on_event(event)


def load(name: BackendName) -> Backend:
    """The backend of that name. Raises `Unavailable` (`R-BACKEND-MISSING`) with what to do."""
    found = probe(name)
    if not found.available:
        raise Unavailable(
            f"The backend {name.value!r} is not available.", why=found.why, do=found.fix, code="R-BACKEND-MISSING"
        )
    return cast(Backend, importlib.import_module(BACKENDS[name]))


def probe(name: BackendName) -> Probe:
    """Whether a backend can be used here; never raises."""
    if name not in BACKENDS:
        return Probe(False, why=ABSENT[name], fix="Use backend: native or trl, which are built in.")
    return cast(Backend, importlib.import_module(BACKENDS[name])).probe()


def probe_all() -> dict[BackendName, Probe]:
    """Every backend's probe, for `plan` and `doctor`."""
    return {name: probe(name) for name in BackendName}


def work_folder(job: TrainingJob, settings: Settings) -> Path:
    return settings.runs / "training" / job.digest[:32]


def run_training(
    job: TrainingJob,
    folder: Path,
    *,
    wanted: Callable[[], Wanted] = always_run,
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
    backend = load(job.config.backend)
    if found := backend.reasons(job):
        raise Refused(found)
    work = work_folder(job, settings)
    work.mkdir(parents=True, exist_ok=True)
    write_json_durably(work / SPEC_FILE, job.model_dump(mode="json"))
    attempts = count_starts(work)
    listener = Listener(on_event)
    outcome = supervise(
        backend.command(job, work),
        work,
        env=backend.environment(job),
        wanted=wanted,
        on_event=listener,
        budget_s=budget_s or job.config.budget_s,
        grace_s=grace_s,
        poll_s=poll_s,
    )
    if outcome.status is not Status.DONE:
        raise failure(outcome, listener, work)
    return collect(job, work, folder, listener.begun.get("restarted_from"), attempts + 1)


def count_starts(work: Path) -> int:
    """How often this job was started since it was last finished."""
    path = work / EVENTS_FILE
    if not path.exists():
        return 0
    starts = 0
    with path.open("rb") as lines:
        for line in lines:
            starts = 0 if line.startswith(b'{"event":"done"') else starts + line.startswith(b'{"event":"started"')
    return starts


def failure(outcome: Outcome, listener: Listener, work: Path) -> TrainyardError:
    """The error that tells why a child did not finish."""
    if outcome.status is Status.STOPPED:
        step = listener.stopped.get("step")
        saved = f"at step {step}; its checkpoint is kept" if step else "before its first step"
        if outcome.killed:
            saved = "by force, as it did not save in time; earlier checkpoints are kept"
        return TrainingStopped(
            f"The training stopped {saved}.", why=outcome.reason, do="Start the same run again: it continues."
        )
    assert outcome.error is not None
    return rebuilt(outcome.error, work)


def rebuilt(error: dict[str, Any], work: Path) -> TrainyardError:
    """The child's error as an exception of its own class."""
    if error.get("reasons"):
        return Refused([Reason(**reason) for reason in error["reasons"]])
    kind = getattr(errors, str(error.get("kind")), TrainyardError)
    if not (isinstance(kind, type) and issubclass(kind, TrainyardError)):
        kind = TrainyardError
    do = str(error.get("do") or "").replace(LOG_FILE, str(work / LOG_FILE))
    return kind(str(error.get("what")), why=str(error.get("why") or ""), do=do, code=error.get("code"))


def collect(job: TrainingJob, work: Path, folder: Path, restarted_from: Any, attempts: int) -> Produced:
    """Hand the result over and leave only log and events behind."""
    port = job.output
    made = work / RESULT_FOLDER / port.value
    training = json.loads((made / TRAINING_FILE).read_text(encoding="utf-8"))
    target = folder / port.value
    folder.mkdir(parents=True, exist_ok=True)
    move(made, target)
    for name in (RESULT_FOLDER, CHECKPOINT_FOLDER):
        shutil.rmtree(work / name, ignore_errors=True)
    for name in (DECISIONS_FILE, FITTED_FILE):
        (work / name).unlink(missing_ok=True)
    facts = {name: training[name] for name in KEPT_FACTS}
    facts |= {"backend": job.config.backend.value, "attempts": attempts, "restarted_from": restarted_from}
    if job.config.control:
        facts["control"] = job.config.control
    return Produced(outputs={port: ProducedSet(folder=port.value, facts=facts)}, facts=facts)


def move(source: Path, target: Path) -> None:
    """Rename, or copy where the two folders are on different disks."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(source, target)
