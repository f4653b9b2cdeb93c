"""Speed of the running trainings, from the ends of their event files: a few milliseconds for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import Event, EventTail
from trainyard.spec.states import JobState
from trainyard.stores.live.job_index import JobIndex, JobQuery, Row
from trainyard.stores.metrics import number

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
