"""A measurement from the events of a training: where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Literal

from trainyard.backends.job import TrainingJob
from trainyard.compute.events import Event
from trainyard.compute.monitor.processor import ProcessorTime, read_processor_time
from trainyard.spec.estimate.timing import StepTiming, rows_per_step, save_steps
from trainyard.stores.metrics import number

WARM_UP = 2
"""First steps that are not counted: kernels are chosen and memory is taken in them."""
LEAST_STEPS = 3
"""Steps after them without which nothing was measured."""


@dataclass
class Stopwatch:
    """The events of a training that time is read from, each with its time by the clock of the machine."""

    began: float
    started: float = 0.0
    begin: Event = field(default_factory=dict)
    prepared: Event = field(default_factory=dict)
    steps: list[Event] = field(default_factory=list)
    disturbed: set[int] = field(default_factory=set)
    """Steps after which there was an evaluation."""
    pid: int = 0
    used: list[ProcessorTime] = field(default_factory=list)
    """At the first event, the first step and the last one that was seen."""

    def __call__(self, event: Event) -> None:
        name = event["event"]
        if name == "started":
            self.started, self.steps = event["time"], []
            self.pid, self.used = int(number(event.get("pid")) or 0), []
        elif name in ("begin", "prepared"):
            setattr(self, name, event)
        elif name == "progress" and number(event.get("step")) is not None:
            self.steps.append(event)
        elif name in ("evaluation", "samples") and self.steps:
            self.disturbed.add(self.steps[-1]["step"])
        self.note_processor_time()

    def note_processor_time(self) -> None:
        """Note what the process has had of the processor so far; of one that has ended the last reading stays."""
        if (used := read_processor_time(self.pid)) is None:
            return
        while len(self.used) < (3 if self.steps else 2):
            self.used.append(used)
        self.used[-1] = used

    def cpu_shares(self) -> tuple[float, float]:
        """Return the share of the processor until the first step, and in the steps; 1 where it is not known."""
        if len(self.used) < 3:
            return 1.0, 1.0
        first, middle, last = self.used
        return middle.share_since(first), last.share_since(middle)


@dataclass(frozen=True)
class Pace:
    """Seconds of a step, and what a checkpoint adds to one."""

    step_s: float
    save_s: float


def measure_pace(watch: Stopwatch, every: int) -> Pace | None:
    """Return the mean step, without the first ones and those with a checkpoint or an evaluation; None with too few."""
    plain: list[float] = []
    saving: list[float] = []
    for before, after in pairwise(watch.steps):
        count = after["step"] - before["step"]
        if before["step"] < WARM_UP or count < 1 or before["step"] in watch.disturbed:
            continue
        saves = before["step"] // every != (after["step"] - 1) // every or before["step"] % every == 0
        (saving if saves and count == 1 else plain).append((after["time"] - before["time"]) / count)
    if len(plain) < LEAST_STEPS:
        return None
    mean = fmean(plain)
    return Pace(mean, max(0.0, fmean(saving) - mean) if saving else 0.0)


def read_measurement(
    job: TrainingJob, watch: Stopwatch, ended: float, source: Literal["probe", "run"], data: str
) -> StepTiming | None:
    """Return what a finished training says about the time of others; None for one that was too short or continued."""
    if not watch.started or len(watch.steps) < WARM_UP + LEAST_STEPS or watch.begin.get("restarted_from") is not None:
        return None
    hyper, first, last = job.config.hyperparameters, watch.steps[0], watch.steps[-1]
    pace = measure_pace(watch, save_steps(hyper, int(watch.begin.get("total_steps") or last["step"])))
    if pace is None:
        return None
    rows = int(number(watch.prepared.get("rows")) or 0)
    epochs = number(watch.begin.get("total_epochs"))
    load_share, step_share = watch.cpu_shares()
    return StepTiming(
        source=source,
        time=ended,
        max_length=hyper.max_length,
        rows_per_batch=hyper.batch_size,
        rows_per_step=rows_per_step(job.config),
        data=data,
        rows=rows,
        tokens_per_row=tokens_per_row(job, watch.steps),
        steps_per_epoch=(number(watch.begin.get("total_steps")) or 0.0) / epochs if epochs else 0.0,
        seconds_per_step=pace.step_s,
        start_s=max(0.0, watch.started - watch.began),
        load_s=max(0.0, first["time"] - watch.started - pace.step_s * first["step"]),
        load_s_per_row=(number(watch.prepared.get("seconds")) or 0.0) / rows if rows else 0.0,
        end_s=max(0.0, ended - last["time"]),
        save_s=pace.save_s,
        load_cpu_share=load_share,
        step_cpu_share=step_share,
    )


def tokens_per_row(job: TrainingJob, steps: Sequence[Event]) -> float:
    """Mean tokens of a row over the steps; 0 where the trainer does not count them."""
    tokens = number(steps[-1].get("tokens"))
    return tokens / (steps[-1]["step"] * rows_per_step(job.config)) if tokens else 0.0
