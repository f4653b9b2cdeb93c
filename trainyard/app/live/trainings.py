"""Facts of a run that its files have and Prefect does not: its trainers, how far they are, and what they train.

How fast the running trainings are, from the ends of their event files: a few milliseconds for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.app.training_logs import TrainingLogs, find_training_logs
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import Event, EventTail
from trainyard.json_types import JsonObject
from trainyard.settings import Settings
from trainyard.spec.states import JobState
from trainyard.stores.live.curves import CurveStore, Position, curve_path, open_curve
from trainyard.stores.live.job_ids import WORDS, read_chain_facts
from trainyard.stores.live.job_index import JobIndex, JobQuery, Row
from trainyard.stores.metrics import number, select_since

SHOWN = ("node", "step", "total_steps", "loss")
"""Of the last trainer, in lists."""


def add_files(row: Row, settings: Settings) -> Row:
    """Return the row of a job with the facts of its resolved chain and the progress of its trainers."""
    folder = settings.runs / row["run_id"]
    trainings = [describe(work, curves_folder(settings)) for work in find_training_logs(folder)]
    progress = {name: trainings[-1][name] for name in SHOWN} if trainings else {}
    return {**add_chain_facts(row, folder), **progress, "trainings": trainings}


def add_chain_facts(row: Row, folder: Path) -> Row:
    """Return the row with the words of its resolved chain, which has every default. Whose it is, its tags say."""
    facts = read_chain_facts(folder)
    return row if facts is None else {**row, **{name: facts[name] for name in WORDS}}


def describe(work: TrainingLogs, curves: Path) -> JsonObject:
    """Return one trainer of a row: its node, its work folder, since when it counts, and how far it is."""
    progress = read_new_steps(work, curves).progress()
    return {"node": work.node, "folder": str(work.folder), "since": work.since, **progress.model_dump()}


def find_trainings(row: Row) -> list[TrainingLogs]:
    """Return the trainers of a row that has its files' part."""
    return [
        TrainingLogs(training["node"], Path(training["folder"]), training["since"]) for training in row["trainings"]
    ]


def curves_folder(settings: Settings) -> Path:
    return settings.home / "live" / "curves"


def read_new_steps(work: TrainingLogs, folder: Path) -> CurveStore:
    """Return the curve of a trainer with every step so far; only new lines are read."""
    store, path = open_curve(curve_path(folder, work.folder, work.since)), work.folder / EVENTS_FILE
    while path.is_file():
        before, there = store.position(), path.stat()
        if before.inode not in (0, there.st_ino) or there.st_size < before.offset:
            store.reset()  # the file was replaced
            continue
        tail = EventTail(path, before.offset)
        events = tail.read()
        after = Position(tail.offset - len(tail.pending), there.st_ino)
        if after == before or after.offset == before.offset:
            break
        store.extend(select_since(iter(events), work.since), before, after)
    return store


TAIL_BYTES = 64 << 10
"""Some hundred steps."""
MOST_RUNNING = 100
BEGINS = ("started", "begin")
"""Events after which steps are no longer comparable with those before: the time between may be a pause."""


@dataclass(frozen=True)
class TrainingSpeed:
    """A running training. None: its newest events do not say."""

    backend: str
    stage: str
    method: str
    step_s: float | None
    """Mean of the steps at the end of its file."""
    tokens_per_s: float | None
    checkpoint_s: float | None
    """Of the newest checkpoint, from the copy to the disk."""
    checkpoint_bytes: float | None


def read_speeds(index: JobIndex) -> Iterator[TrainingSpeed]:
    """Yield the trainer that each running job has started last."""
    for row in index.select(JobQuery(state=JobState.RUNNING, limit=MOST_RUNNING)).rows:
        if row.get("trainings"):
            folder = Path(row["trainings"][-1]["folder"])
            yield measure_speed(row, EventTail.at_end(folder / EVENTS_FILE, TAIL_BYTES).read_all())


def measure_speed(row: Row, events: Iterable[Event]) -> TrainingSpeed:
    """Return what some events say, the oldest first."""
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    tokens_per_s: float | None = None
    checkpoint: Event = {}
    for event in events:
        step, when = number(event.get("step")), number(event.get("time"))
        if event["event"] in BEGINS:
            first = last = None
        elif event["event"] == "progress" and step is not None and when is not None:
            first, last = first or (step, when), (step, when)
            tokens_per_s = number(event.get("tokens_per_second"))
        elif event["event"] == "checkpoint" and event.get("tier", "disk") == "disk":
            checkpoint = event
    return TrainingSpeed(
        row.get("backend") or "", row.get("stage") or "", row.get("method") or "", step_s=mean_step_s(first, last),
        tokens_per_s=tokens_per_s, checkpoint_s=number(checkpoint.get("seconds")),
        checkpoint_bytes=number(checkpoint.get("bytes")),
    )  # fmt: skip


def mean_step_s(first: tuple[float, float] | None, last: tuple[float, float] | None) -> float | None:
    """Return seconds of a step between two of them, (step, time) each."""
    if first is None or last is None or last[0] <= first[0]:
        return None
    return max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
