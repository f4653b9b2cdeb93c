"""Files that the trainers of a run left in their work folders: progress, their curve, their log, their checkpoints.

A run's events name the work folder of each trainer (`job`); a training that did not fit the memory continues in another
one, which the first one names. All of it is read from files, while the run is running, and without Prefect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.backends.oom import follow_restarts
from trainyard.backends.results import CHECKPOINT_FOLDER, RUNG
from trainyard.compute.child import EVENTS_FILE, LOG_FILE
from trainyard.compute.events import EventTail
from trainyard.compute.events import read_events as events_of
from trainyard.evals.curves import loss_curves
from trainyard.json_types import JsonObject
from trainyard.settings import settings
from trainyard.stores import metrics

LAST_BYTES = 1 << 20
"""Bytes that are shown of a log that exists already."""
ENDS = ("done", "stopped")


@dataclass(frozen=True)
class TrainingLogs:
    """A trainer of a run."""

    node: str
    folder: Path
    since: float = 0.0
    """When this run first started it (seconds of the epoch): a job that it retries shares the folder."""

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    def progress(self) -> metrics.TrainingProgress:
        return metrics.read_progress(events_of(self.folder / EVENTS_FILE), self.since)

    def curve(self) -> list[metrics.Point]:
        return metrics.read_curve(events_of(self.folder / EVENTS_FILE), self.since)

    def end(self) -> str:
        """Return how its last start ended as it says itself: done, stopped because it was asked to, or nothing."""
        last = ""
        for event in metrics.select_since(events_of(self.folder / EVENTS_FILE), self.since):
            if event["event"] == "started" or event.get("reason") == RUNG:
                last = ""
            elif event["event"] in ENDS:
                last = event["event"]
        return last

    def checkpoints(self) -> list[str]:
        """Return names of the checkpoints that are there, the oldest first; none after the training has finished."""
        folder = self.folder / CHECKPOINT_FOLDER
        return sorted(path.name for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))


def find_training_logs(run_folder: Path) -> list[TrainingLogs]:
    """Return the trainers that a run has started, in the order of their first start."""
    works: dict[str, TrainingLogs] = {}
    for event in events_of(run_folder / EVENTS_FILE):
        if event["event"] == "job":
            node, folder = event["node"], follow_restarts(Path(event["folder"]))
            works[node] = TrainingLogs(node, folder, works[node].since if node in works else event["time"])
    return list(works.values())


def draw_run(run_folder: Path) -> str:
    """Return the losses and evaluation losses of a run's trainers as an SVG; "" when no trainer of it made a step."""
    curves: dict[str, JsonObject] = {}
    for log in find_training_logs(run_folder):
        points = log.curve()
        curves[log.node] = {"losses": [(point.step, point.loss) for point in points]}
        curves[f"{log.node} eval"] = {"losses": [(point.step, point.eval_loss) for point in points]}
    shown_curves = {
        name: curve for name, curve in curves.items() if any(loss is not None for _, loss in curve["losses"])
    }
    return loss_curves(shown_curves) if shown_curves else ""


STEP_EVERY_S = 5.0
"""Least time between two lines about the steps of one trainer, by the trainer's own clock."""


@dataclass
class StepLog:
    """A trainer's steps as lines of a log: the first one, one every few seconds, each evaluated one, and the last."""

    events: EventTail
    since: float = 0.0
    pace: metrics.TrainingPace = field(default_factory=metrics.TrainingPace)
    line_time: float = 0.0

    def read(self) -> Iterator[tuple[float, str]]:
        """(time, text) of the steps since the last call."""
        while events := self.events.read():
            for event in metrics.select_since(iter(events), self.since):
                if event["event"] == "begin":
                    self.pace, self.line_time = metrics.TrainingPace(), 0.0
                elif event["event"] == "progress" and metrics.number(event.get("step")) is not None:
                    yield from self.line(event)

    def line(self, event: JsonObject) -> Iterator[tuple[float, str]]:
        text, time = self.pace.line(event), metrics.number(event.get("time")) or 0.0
        evaluated = metrics.number(event.get("eval_loss")) is not None
        if evaluated or time - self.line_time >= STEP_EVERY_S or event["step"] == event.get("total_steps"):
            self.line_time = time
            yield time, text


FRUITLESS = 3
"""After so many preemptions without a further step a run is no longer continued automatically."""


def find_left_trainings(run_folder: Path) -> list[TrainingLogs]:
    """Return the trainers of a run that stopped at a checkpoint after the run's own process was gone."""
    return [work for work in find_training_logs(run_folder) if work.end() == "stopped"]


def has_no_progress(run_folder: Path) -> bool:
    """Return whether no training made a step between the last preemptions of a run."""
    messages: list[str] = []
    for event in events_of(run_folder / EVENTS_FILE):
        if event["event"] == "stopped" and event.get("reason") == "preempt":
            messages.append(str(event.get("message")))
        elif event["event"] == "finished":
            messages.clear()
    return len(messages) >= FRUITLESS and len(set(messages[-FRUITLESS:])) == 1


def run_svg(run_id: str) -> str | None:
    """Return the loss of a run's trainers so far; None where there is none, or the run is on another machine."""
    return draw_run(settings().runs / run_id) or None
