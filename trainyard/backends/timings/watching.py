"""The time of a real training: expected before it, measured by it, and kept for the next plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import orjson

from trainyard.backends.job import TrainingJob
from trainyard.backends.timings.reading import Stopwatch, read_measurement
from trainyard.backends.timings.records import add_timing, measure_slowdown, read_timings, timing_key
from trainyard.callbacks import ignore
from trainyard.compute.events import Event
from trainyard.compute.gpus import list_devices
from trainyard.data.rows import ROWS_FILE, count_rows
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.estimate import count_steps
from trainyard.spec.estimate.evaluations import estimate_held_out_rows
from trainyard.spec.estimate.rollouts import rows_seen
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import Workload, estimate_time
from trainyard.stores.artifacts import Produced

Source = Literal["probe", "run"]


def make_key(job: TrainingJob, settings: Settings) -> str:
    return timing_key(job.config, Path(job.base), find_device(job), settings)


def find_device(job: TrainingJob) -> Device:
    return list_devices()[0] if job.config.device is Device.AUTO else job.config.device


def find_data_name(job: TrainingJob) -> str:
    """Return the name of the job's data set; "" where it has none."""
    return next(iter(job.data_sha256.values()), "")


def expect_seconds(job: TrainingJob, settings: Settings) -> float | None:
    """Return what a plan says now about a job from its start to its result, without the queue."""
    rows = next((count_rows(Path(folder) / ROWS_FILE) for folder in job.data.values()), None)
    config, path = job.config, Path(job.base) / "config.json"
    shape = ModelShape.from_config(orjson.loads(path.read_bytes())) if path.is_file() else None
    seen = None if rows is None else rows_seen(config, rows - estimate_held_out_rows(config, rows))
    hyper = config.hyperparameters
    steps = hyper.max_steps if seen is None else count_steps(hyper, seen, config.launch.processes)
    work = Workload(seen, steps, None, frozenset(filter(None, [find_data_name(job)])))
    timings = replace(read_timings(make_key(job, settings), settings), slowdown=measure_slowdown(find_device(job)))
    return estimate_time(shape, config, work, timings).seconds


class TrainingClock:
    """Watches one training from before its process starts to its result; call it with each of its events."""

    def __init__(
        self, job: TrainingJob, settings: Settings, on_event: Callable[[Event], None] = ignore, source: Source = "run"
    ) -> None:
        self.job, self.settings, self.on_event, self.source = job, settings, on_event, source
        self.expected = None if source == "probe" else expect_seconds(job, settings)
        self.watch = Stopwatch(time.time())

    def __call__(self, event: Event) -> None:
        self.watch(event)
        self.on_event(event)

    def stop(self, produced: Produced) -> Produced:
        """Keep the measurement for later plans; returns the result with the seconds, and what was expected of them.

        A measurement that cannot be kept is a warning, because the training is done.
        """
        ended = time.time()
        measurement = read_measurement(self.job, self.watch, ended, self.source, find_data_name(self.job))
        try:
            if measurement is not None:
                add_timing(make_key(self.job, self.settings), measurement, self.settings)
        except (OSError, TrainyardError) as error:
            self.on_event({"event": "warning", "text": f"How long the training took was not kept: {error}"})
        facts = {"seconds": round(ended - self.watch.began, 1)}
        facts |= {} if self.expected is None else {"expected": round(self.expected, 1)}
        return produced.model_copy(update={"facts": {**produced.facts, "time": facts}})
