"""The file of measurements of one kind of training: `timings/<digest of what its speed depends on>.json`.

Length and rows of a step are within the file, because a step is scaled by its operations. A file that cannot be read,
or that a newer version wrote, counts as no measurement, with the reason; the next measurement replaces it.

A measurement from the events of a training: where its time went.

The time of a real training: expected before it, measured by it, and kept for the next plan.

A probe: ten steps of a training in a supervised child, on a device that is claimed as for any other training.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Literal

import orjson
from pydantic import ValidationError

from trainyard.backends.base import run_training, work_folder
from trainyard.backends.job import PROBE_RUN, TrainingJob
from trainyard.backends.machine import device_name, read_architecture, versions
from trainyard.callbacks import ignore
from trainyard.compute.child import LOG_FILE
from trainyard.compute.events import Event
from trainyard.compute.gpus import device_numbers, list_devices, training_threads
from trainyard.compute.lease import claim_devices, device_lock, holder, slot_lock
from trainyard.compute.monitor import ProcessorTime, read_processor_time
from trainyard.compute.supervise import kernel_kills, ran_out_of_memory, read_tail
from trainyard.errors import Conflict, TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.chain import digest
from trainyard.spec.estimate.estimate import count_steps
from trainyard.spec.estimate.memory import rows_seen
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.estimate.timing import (
    Problem,
    StepTiming,
    Timings,
    Workload,
    estimate_held_out_rows,
    estimate_time,
    rows_per_step,
    save_steps,
)
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import Produced
from trainyard.stores.metrics import number
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

KEPT = 50
"""Measurements in a file, the newest ones."""
LOCK_WAIT_S = 10.0
LEAST_RUN_NS = 200_000_000
"""A process that computed less says nothing about the others."""


def timing_key(config: TrainerConfig, base: Path | None, device: Device, settings: Settings) -> str:
    """Digest of everything that the speed of a training depends on, but for its length and the rows of a step."""
    hyper, engine = config.hyperparameters, config.engine
    facts = {
        "architecture": read_architecture(base) or config.base_model,
        "method": config.method.model_dump(mode="json"),
        "stage": config.stage.model_dump(mode="json"),
        "quantization": config.quantization,
        "precision": hyper.precision,
        "optimizer": hyper.optimizer,
        "checkpointing": hyper.gradient_checkpointing,
        "engine": {name: getattr(engine, name) for name in ("batching", "token_budget", "attention", "head", "fp8")},
        "launch": {"strategy": config.launch.strategy, "processes": config.launch.processes},
        "device": device_name(device),
        "threads": training_threads(settings.threads) if device is Device.CPU else 0,
        "backend": config.backend,
        "script": config.launch.script,
        "versions": versions(),
    }
    return digest(facts)[:32]


def measure_slowdown(device: Device) -> float:
    """Return how much longer a computation takes next to the other programs of this machine; 1 on a GPU.

    Measured on this process: the time that it computed and waited for a processor, over that in which it computed. (The
    load average counts programs that wait for the disk, too: at a load of 15 trainings took 2.3 times as long, not 8.)
    """
    used = read_processor_time(os.getpid()) if device is Device.CPU else None
    return 1.0 if used is None or used.run < LEAST_RUN_NS else (used.run + used.wait) / used.run


def read_timings(key: str, settings: Settings) -> Timings:
    """Return the measurements; none, with the reason, for a file that cannot be used."""
    path = settings.timings / f"{key}.json"
    try:
        value = read_versioned("timings", path.read_bytes(), path)
        measured = tuple(StepTiming.model_validate(timing) for timing in value["measured"])
        return Timings(measured, tuple(Problem.model_validate(problem) for problem in value["problems"]))
    except FileNotFoundError:
        return Timings()
    except Conflict as error:
        return Timings(note=f"an earlier measurement is not used: {error.what}")
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        return Timings(note=f"an earlier measurement is not used: {path} cannot be read ({type(error).__name__})")


def add_timing(key: str, entry: StepTiming | Problem, settings: Settings) -> None:
    """Add a measurement to its file. Two processes that measured at once add one after the other."""
    path = settings.timings / f"{key}.json"
    with device_lock(settings.timings / f"{key}.lock", run="timings", wait_s=LOCK_WAIT_S):
        timings = read_timings(key, settings)
        measured, problems = list(timings.measured), list(timings.problems)
        (measured if isinstance(entry, StepTiming) else problems).append(entry)  # type: ignore[arg-type]
        value = {
            "measured": [timing.model_dump(mode="json") for timing in measured[-KEPT:]],
            "problems": [problem.model_dump(mode="json") for problem in problems[-KEPT:]],
        }
        write_json_durably(path, add_version("timings", value))


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


Source = Literal["probe", "run"]


def make_key(job: TrainingJob, settings: Settings) -> str:
    return timing_key(job.config, Path(job.base), find_device(job), settings)


def find_device(job: TrainingJob) -> Device:
    return list_devices()[0] if job.config.device is Device.AUTO else job.config.device


def find_data_name(job: TrainingJob) -> str:
    """Return the name of the job's data set; "" where it has none."""
    return next(iter(job.data_sha256.values()), "")


def expect_seconds(job: TrainingJob, settings: Settings, tokens_per_row: float | None = None) -> float | None:
    """Return what a plan says now about a job from its start to its result, without the queue.

    `tokens_per_row` counts both sides of a pair. None without it, unless a training of the same data was measured: a
    time for rows of the greatest length would say nothing about this job.
    """
    from trainyard.data.rows import ROWS_FILE, count_rows  # imports pyarrow

    timings, data = read_timings(make_key(job, settings), settings), find_data_name(job)
    if tokens_per_row is None and not any(
        data and timing.data == data and timing.tokens_per_row for timing in timings.measured
    ):
        return None
    rows = next((count_rows(Path(folder) / ROWS_FILE) for folder in job.data.values()), None)
    config, path = job.config, Path(job.base) / "config.json"
    shape = ModelShape.from_config(orjson.loads(path.read_bytes())) if path.is_file() else None
    seen = None if rows is None else rows_seen(config, rows - estimate_held_out_rows(config, rows))
    hyper = config.hyperparameters
    steps = hyper.max_steps if seen is None else count_steps(hyper, seen, config.launch.processes)
    work = Workload(seen, steps, tokens_per_row, frozenset(filter(None, [data])))
    timings = replace(timings, slowdown=measure_slowdown(find_device(job)))
    return estimate_time(shape, config, work, timings).seconds


def count_tokens_per_row(ledger: Event) -> float | None:
    """Return the mean tokens of the rows of a token account, both sides of a pair together; None without rows."""
    rows = number((ledger.get("rows") or {}).get("trained"))
    tokens = (number(ledger.get("trained")) or 0.0) + (number(ledger.get("masked")) or 0.0)
    return tokens / rows if rows else None


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
        if event["event"] == "ledger" and self.expected is None and self.source == "run" and not self.draws_answers:
            self.expected = expect_seconds(self.job, self.settings, count_tokens_per_row(event))
        self.on_event(event)

    @property
    def draws_answers(self) -> bool:
        """Whether most tokens are drawn while it trains, so that its rows have few of them."""
        return self.job.config.stage.facts.draws_groups

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
        whole = self.watch.begin.get("restarted_from") is None  # else it took the seconds of its last part alone
        facts |= {"expected": round(self.expected, 1)} if whole and self.expected is not None else {}
        return produced.model_copy(update={"facts": {**produced.facts, "time": facts}})


STEPS, SAVE_AT = 10, 5


def probe_config(config: TrainerConfig) -> TrainerConfig:
    """Return the training, cut to ten steps at its peak rate with one checkpoint; it leaves nothing anywhere else."""
    hyper = {"max_steps": STEPS, "save_steps": SAVE_AT, "schedule": Schedule.CONSTANT, "warmup_steps": None}
    return config.model_copy(
        update={
            "hyperparameters": config.hyperparameters.model_copy(update=hyper),
            "engine": config.engine.model_copy(update={"mirror": None, "trackers": ()}),
            "launch": config.launch.model_copy(update={"on_oom": "fail"}),
            "eval": None,
            "reuse": False,
        }
    )


def run_probe(job: TrainingJob, folder: Path, settings: Settings, say: Callable[[str], None]) -> Problem | None:
    """Measure ten steps of the job and add what they took to its timings, or that they did not fit the memory.

    Waits for the device. Raises what `run_training` raises, but for want of memory.
    """
    job = job.model_copy(update={"config": probe_config(job.config), "run": f"{PROBE_RUN}{uuid.uuid4().hex[:12]}"})
    for device in device_numbers():
        if (other := holder(slot_lock(settings, device))) is not None:
            say(f"device {device} is in use by {other}; the measurement may wait for it")
    with claim_devices(settings, job.config.launch.local_processes, run=job.run) as devices:
        job = job.model_copy(update={"devices": devices})
        work, kills = work_folder(job, settings), kernel_kills()
        try:
            clock = TrainingClock(job, settings, source="probe")
            clock.stop(run_training(job, folder, on_event=clock, settings=settings))
        except TrainyardError as error:
            log = read_tail(work / LOG_FILE)
            if not ran_out_of_memory(error, log, killed_by_kernel=kernel_kills() > kills):
                raise
            hyper = job.config.hyperparameters
            why = f"ten steps ran out of memory: {error.what}"
            problem = Problem(time=time.time(), max_length=hyper.max_length, rows_per_batch=hyper.batch_size, why=why)
            add_timing(make_key(job, settings), problem, settings)
            return problem
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return None
