"""The end of a training: its result with a record, the error that explains why there is none, or a restart.

The work folder `runs/training/<work name>` outlives a killed run: it contains the checkpoints that a restarted trainer
resumes from. A finished job leaves only its log and events there, and its best checkpoints where it asks for several.
"""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from trainyard.backends.job import TrainingJob
from trainyard.compute.child import EVENTS_FILE, LOG_FILE, Events
from trainyard.compute.energy import ENERGY_FILE, read_energy
from trainyard.compute.events import Event, read_block, read_events
from trainyard.compute.supervise import LOG_HEADER, DesiredState, Outcome, Status
from trainyard.errors import Conflict, TrainyardError, from_fields
from trainyard.json_types import JsonMapping
from trainyard.stores.artifacts import Produced, ProducedSet
from trainyard.stores.metrics import number, read_curve
from trainyard.stores.whole import write_json_durably
from trainyard.train.checkpoint.checkpoints import FoundCheckpoint, checkpoints, list_best, read_metric
from trainyard.train.divergence import DivergenceWatch, judge_training
from trainyard.train.history import choose_comparison

Claimed = TypeVar("Claimed")
TRAINING_FILE = "training.json"
RESULT_FOLDER, CHECKPOINT_FOLDER, BEST_FOLDER = "result", "checkpoints", "best"
"""The last one has the best checkpoints of a finished training that asks for more than one; no restart reads it."""
RUNG = "rung"
"""Reason of a training that stopped after the step that it was asked for (`TrainingJob.until`)."""
DECISIONS_FILE, FITTED_FILE = "decisions.json", "fitted.json"
"""Measurements of the first start (precision, free memory); a restart takes it from here."""
KEPT_FACTS = (
    "stage",
    "method",
    "steps",
    "first_loss",
    "final_loss",
    "tokens",
    "rows",
    "counted",
    "data",
    "device",
    "precision",
    "seconds",
)


SMOOTHED_SHARE = 0.1
"""Share of the steps at either end whose mean says where a loss began and ended: one batch alone may be an easy one."""


class TrainingStopped(TrainyardError):
    """The training stopped at a safe point because it was asked to; the same job continues from there."""

    default_code = "E-STOPPED"

    @property
    def reason(self) -> str:
        """pause, cancel, budget, or what the child said."""
        return self.why


@contextmanager
def enter_unless_stopped(
    claim: AbstractContextManager[Claimed], desired_state: Callable[[], DesiredState], message: str
) -> Iterator[Claimed]:
    """Enter a claim; one that is given up because the run was stopped meanwhile raises `TrainingStopped`."""
    with ExitStack() as stack:
        try:
            claimed = stack.enter_context(claim)
        except Conflict:
            if desired_state() is DesiredState.RUN:
                raise
            raise TrainingStopped(message, why=desired_state().value, do="Resume it: nothing was lost.") from None
        yield claimed


LOG_HEAD_BYTES = 2000
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Terminal control sequences (ECMA-48), which trainers print even into files."""


@dataclass
class Listener:
    """Remembers the events that matter for the result while handing all of them on."""

    on_event: Callable[[Event], None]
    job: TrainingJob
    work: Path
    begin_event: Event = field(default_factory=dict)
    stopped: Event = field(default_factory=dict)
    watch: DivergenceWatch | None = None
    """None before the training begins, and for one whose losses are not comparable."""

    def __call__(self, event: Event) -> None:
        if event["event"] == "begin":
            self.begin_event, self.watch = event, watch_from(self.job, self.work, event.get("restarted_from"))
        if event["event"] == "stopped":
            self.stopped = event
        self.on_event(event)
        if event["event"] == "progress" and self.watch is not None:
            step, loss, held_out = (number(event.get(name)) for name in ("step", "loss", "eval_loss"))
            for divergence in self.watch.on_step(int(step or 0), loss, held_out, read_norm(event)):
                self.on_event({"event": "divergence", "text": divergence.text, "divergence": divergence.as_dict()})


def has_comparable_losses(job: TrainingJob) -> bool:
    """Return whether the losses of steps are comparable: with drawn completions and latent thoughts, rows change."""
    return not job.config.stage.drawn_tokens and job.config.stage.technique is None


def takes_best(job: TrainingJob) -> bool:
    return job.config.eval is not None and job.config.eval.load_best


def watch_from(job: TrainingJob, work: Path, restarted_from: object) -> DivergenceWatch | None:
    """Return a watch that has read the steps up to the checkpoint of a restart; None if losses are not comparable.

    A fast child has written steps of its own before its begin is read: their events follow, and are judged then.
    """
    if not has_comparable_losses(job):
        return None
    watch = DivergenceWatch(takes_best(job))
    last = restarted_from.get("step") if isinstance(restarted_from, dict) else None
    if isinstance(last, int):
        norms = read_norms(work)
        for point in read_curve(read_events(work / EVENTS_FILE)):
            if point.step <= last:
                watch.on_step(point.step, point.loss, point.eval_loss, norms.get(point.step))
    return watch


def read_norm(event: Event) -> float | None:
    """Return the norm of a step's gradient, NaN for one that is not finite, which JSON has as null.

    None where nothing measured it, and where fp16's scaling skips such steps.
    """
    norm = number(event.get("grad_norm"))
    if norm is None and "grad_norm" in event and not event.get("skipped"):
        return math.nan
    return norm


def read_norms(work: Path) -> dict[int, float]:
    """Return step -> norm of the gradient of the steps of a training."""
    steps = ((event.get("step"), read_norm(event)) for event in read_events(work / EVENTS_FILE)
             if event["event"] == "progress")  # fmt: skip
    return {step: norm for step, norm in steps if isinstance(step, int) and norm is not None}


def find_divergence(job: TrainingJob, training: JsonMapping, work: Path) -> dict[str, object]:
    """`divergence`: what speaks against a finished training in its own numbers; empty for nothing."""
    if not has_comparable_losses(job):
        return {}
    evaluations = (training.get("evaluation") or {}).get("found") or ()
    divergences = judge_training(training["losses"], evaluations, takes_best=takes_best(job), norms=read_norms(work))
    return {"divergence": [divergence.as_dict() for divergence in divergences]} if divergences else {}


def count_starts(work: Path) -> int:
    """Return how often this job was started since it was last finished."""
    path = work / EVENTS_FILE
    if not path.exists():
        return 0
    starts = 0
    with path.open("rb") as lines:
        for line in lines:
            starts = 0 if line.startswith(b'{"event":"done"') else starts + line.startswith(b'{"event":"started"')
    return starts


def make_failure(outcome: Outcome, listener: Listener, work: Path) -> TrainyardError:
    """Return the error that explains why a child did not finish."""
    if outcome.status is Status.STOPPED:
        step = listener.stopped.get("step")
        saved = f"at step {step}; its checkpoint is kept" if step else "before its first step"
        if outcome.killed:
            saved = "by force, as it did not save in time; earlier checkpoints are kept"
        return TrainingStopped(
            f"The training stopped {saved}.", why=outcome.reason, do="Start the same run again: it continues."
        )
    assert outcome.error is not None
    return rebuild_error(outcome.error, work)


def rebuild_error(error: Mapping[str, object], work: Path) -> TrainyardError:
    """Return the child's error as an exception of its own class, which names the log by its whole path."""
    do = str(error.get("do") or "").replace(LOG_FILE, str(work / LOG_FILE))
    return from_fields({**error, "do": do})


def collect_result(
    job: TrainingJob, work: Path, folder: Path, listener: Listener, *, attempts: int, version: str
) -> Produced:
    """Hand the result over and leave only log and events behind.

    `attempts` counts earlier starts of the same job; `version` is the trainer's own version string.
    """
    port = job.output
    output = work / RESULT_FOLDER / port.value
    header = {"tool_version": version, "log_head": log_head(work / LOG_FILE)}
    training = {**header, **json.loads((output / TRAINING_FILE).read_text(encoding="utf-8"))}
    ends = smooth_losses(training["losses"])
    divergence = find_divergence(job, training, work)
    energy = {"energy_j": round(joules, 1)} if (joules := read_energy(work)) else {}
    training |= ends | divergence | energy
    write_json_durably(output / TRAINING_FILE, training)
    target = folder / port.value
    folder.mkdir(parents=True, exist_ok=True)
    move(output, target)
    keep_best_checkpoints(job, work)
    for name in (RESULT_FOLDER, CHECKPOINT_FOLDER):
        shutil.rmtree(work / name, ignore_errors=True)
    for name in (DECISIONS_FILE, FITTED_FILE, ENERGY_FILE):
        (work / name).unlink(missing_ok=True)
    facts = {name: training[name] for name in KEPT_FACTS} | ends | divergence | energy
    facts |= {"backend": job.config.backend.value, "tool_version": version}
    facts |= {"attempts": attempts + 1, "restarted_from": listener.begin_event.get("restarted_from")}
    if "evaluation" in training:
        evaluation = training["evaluation"]
        facts["evaluation"] = {name: value for name, value in evaluation.items() if name != "found"}
        facts["eval_loss"] = next(
            (point.get("loss") for point in evaluation["found"] if point["step"] == evaluation["result_step"]), None
        )
    if "rollouts" in training:
        facts["rollouts"] = {name: value for name, value in training["rollouts"].items() if name != "found"}
    if job.config.control:
        facts["control"] = job.config.control
    return Produced(outputs={port: ProducedSet(folder=port.value, facts=facts)}, facts=facts)


def keep_best_checkpoints(job: TrainingJob, work: Path) -> None:
    """Move the best checkpoints to a folder that outlives the training, where `eval.keep_best` asks for several."""
    evaluation = job.config.eval
    shutil.rmtree(work / BEST_FOLDER, ignore_errors=True)
    if evaluation is None or not evaluation.best_outlive:
        return
    paths = {step: path for path, step in checkpoints(work / CHECKPOINT_FOLDER)}
    measured = {step: metric for step, path in paths.items() if (metric := read_metric(path)) is not None}
    (work / BEST_FOLDER).mkdir()
    for step in list_best(measured, choose_comparison(evaluation.metric))[: evaluation.keep_best]:
        paths[step].rename(work / BEST_FOLDER / paths[step].name)


def early_stop_text(facts: JsonMapping) -> str:
    """`stopped early at step 60, best at step 40`; empty for a training that took all of its steps."""
    evaluation = facts.get("evaluation") or {}
    if not evaluation.get("stopped_early"):
        return ""
    return f"stopped early at step {facts['steps']}, best at step {evaluation['best_step']}"


def smooth_losses(losses: Sequence[Sequence[float]]) -> dict[str, float]:
    """`loss_at_start` and `loss_at_end`: means of the losses of the first and the last tenth of the steps.

    `losses` are [step, loss, learning rate].
    """
    values = [float(point[1]) for point in losses if point[1] is not None]
    if not values:
        return {}
    size = math.ceil(SMOOTHED_SHARE * len(values))
    return {"loss_at_start": fmean(values[:size]), "loss_at_end": fmean(values[-size:])}


def log_head(path: Path, offset: int = 0) -> str:
    """The lines of a log from `offset` on as plain text: no colours, of a line that was overwritten the last state."""
    text = read_block(path, offset, LOG_HEAD_BYTES).decode("utf-8", "replace")
    lines = [line.rstrip().rpartition("\r")[2] for line in ANSI.sub("", text).split("\n")]
    return "\n".join(line for line in lines if line.strip() and not line.startswith(LOG_HEADER))


def move(source: Path, target: Path) -> None:
    """Rename, or copy where the two folders are on different disks."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(source, target)


def log_restart(marker: Path, checkpoint: FoundCheckpoint, events: Events) -> dict[str, int] | str | None:
    """Log what a restart resumes from: None for a first start, {step} of the checkpoint, or "zero" without one.

    `marker` is the file that an attempt leaves when it begins.
    """
    for sentence in checkpoint.quarantined:
        events.emit("warning", code="E-CHECKPOINT-CORRUPT", text=sentence)
    if checkpoint.path is None and not marker.exists():
        return None
    text = f"continues from the checkpoint of step {checkpoint.step}" if checkpoint.path else "starts again from zero"
    print(f"restart: {text}", flush=True)
    events.emit("restart", step=checkpoint.step, text=f"The trainer was started before and {text}.")
    return {"step": checkpoint.step} if checkpoint.path else "zero"
