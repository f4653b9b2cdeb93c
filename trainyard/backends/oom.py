"""Out-of-memory handling of trainings: recognise it, try once more, or raise an error with numbers.

The one retry takes half the rows at a time and twice as many times before a step, so that a step still sees the same
rows. It starts from zero, in a work folder of its own, because a checkpoint inside an accumulation would not fit; it
is remembered in the job's work folder, so that a resumed run does not run out of memory a second time first.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import psutil

from trainyard.backends.base import run_training, work_folder
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import CHECKPOINT_FOLDER, TRAINING_FILE
from trainyard.backends.tier_limits import require_within_tier
from trainyard.backends.timings import TrainingClock
from trainyard.compute.child import LOG_FILE
from trainyard.compute.events import Event
from trainyard.compute.gpus import device_memory, list_devices
from trainyard.compute.supervise import MEMORY_CODES, DesiredState, kernel_kills, ran_out_of_memory, read_tail
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.cascade import recomputes
from trainyard.spec.estimate.memory import GIB, estimate_memory
from trainyard.spec.estimate.shape import ModelShape
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import Produced
from trainyard.stores.whole import write_json_durably

REMEMBERED_FILE = "halved.json"
"""In the work folder of the job as it was requested: that it did not fit, and how it continues."""


def train_within_memory(
    job: TrainingJob,
    folder: Path,
    *,
    desired_state: Callable[[], DesiredState],
    on_event: Callable[[Event], None],
    settings: Settings,
    train: Callable[..., Produced] = run_training,
) -> Produced:
    """Like `run_training`, with one more try at half the micro-batch when it ran out of memory.

    Raises `LimitExceeded` (`E-DEVICE-MEMORY`, `E-MEMORY`) with estimated numbers when it does not fit either, or when
    `launch.on_oom` is `fail`; `Refused` (`E-LIMIT`) for more rows than the tenant's tier allows; everything else as
    `run_training` does.
    """
    require_within_tier(job, settings)
    smaller = read_smaller_job(job, settings)
    current, tries = smaller or job, 1 if smaller else 2
    while True:
        kills = kernel_kills()
        try:
            clock = TrainingClock(current, settings, on_event)
            produced = clock.stop(
                train(current, folder, desired_state=desired_state, on_event=clock, settings=settings)
            )
            break
        except TrainyardError as error:
            log = read_tail(work_folder(current, settings) / LOG_FILE)
            if not ran_out_of_memory(error, log, killed_by_kernel=kernel_kills() > kills):
                raise
            tries -= 1
            smaller = halve_batch(current) if tries and job.config.launch.on_oom == "halve" else None
            if smaller is None:
                raise with_advice(error, current) from error
            current = smaller
            remember(job, current, error, settings)
            before, after = job.config.hyperparameters, current.config.hyperparameters
            text = (
                f"Out of memory ({error.what}) Once more from zero with batch_size {after.batch_size} instead of "
                f"{before.batch_size} and gradient_accumulation {after.gradient_accumulation}: a step sees the same "
                "rows."
            )
            on_event({"event": "warning", "code": "E-DEVICE-MEMORY", "text": text})
    return produced if current is job else record_smaller_batch(produced, job, current, folder, settings)


def halve_batch(job: TrainingJob) -> TrainingJob | None:
    """Return the job with at most half the rows at a time and as many rows a step; None where fewer cannot be."""
    hyper, budget = job.config.hyperparameters, job.config.engine.token_budget
    rows = hyper.batch_size * hyper.gradient_accumulation
    fewest = job.config.stage.facts.smallest_batch
    sizes = [size for size in range(fewest, hyper.batch_size // 2 + 1) if rows % size == 0]
    if not sizes:
        return None
    updates = {"batch_size": sizes[-1], "gradient_accumulation": rows // sizes[-1]}
    engine = job.config.engine.model_copy(update={"token_budget": max(8, budget // 2)} if budget else {})
    config = job.config.model_copy(update={"hyperparameters": hyper.model_copy(update=updates), "engine": engine})
    return job.model_copy(update={"config": config})


# The retry, remembered and recorded


def read_smaller_job(job: TrainingJob, settings: Settings) -> TrainingJob | None:
    """Return the smaller job that an earlier start continued with."""
    path = work_folder(job, settings) / REMEMBERED_FILE
    if not path.is_file() or job.config.launch.on_oom != "halve":
        return None
    config = TrainerConfig.model_validate(orjson.loads(path.read_bytes())["config"])
    return job.model_copy(update={"config": config})


def follow_restarts(work: Path) -> Path:
    """Return the work folder in which a training continues when it did not fit as it was requested, else its own."""
    path = work / REMEMBERED_FILE
    return Path(orjson.loads(path.read_bytes())["work"]) if path.is_file() else work


def remember(job: TrainingJob, smaller: TrainingJob, error: TrainyardError, settings: Settings) -> None:
    content = {
        "config": smaller.config.model_dump(mode="json"),
        "work": str(work_folder(smaller, settings)),
        "error": error.as_dict(),
    }
    write_json_durably(work_folder(job, settings) / REMEMBERED_FILE, content)


def record_smaller_batch(
    produced: Produced, job: TrainingJob, smaller: TrainingJob, folder: Path, settings: Settings
) -> Produced:
    """Return the result, with what was changed in its facts and in its `training.json`."""
    names = ("batch_size", "gradient_accumulation")
    before, after = job.config.hyperparameters, smaller.config.hyperparameters
    note = {"out_of_memory": {name: [getattr(before, name), getattr(after, name)] for name in names}}
    for port in produced.outputs:
        path = folder / port.value / TRAINING_FILE
        if path.is_file():
            write_json_durably(path, {**json.loads(path.read_text(encoding="utf-8")), **note})
    shutil.rmtree(work_folder(job, settings) / CHECKPOINT_FOLDER, ignore_errors=True)
    return produced.model_copy(update={"facts": {**produced.facts, **note}})


# Advice


def with_advice(error: TrainyardError, job: TrainingJob) -> LimitExceeded:
    """Return the error with numbers: what the job takes by estimate, what there is, and what would take less."""
    device, available = find_device_memory(job.config)
    shape = read_shape(job.base)
    lines = advice(shape, job.config, device, available) if shape else []
    do = "; ".join(lines) or f"Lower max_length{', or set gradient_checkpointing: true' * recomputes(job.config)}"
    code = error.code if error.code in MEMORY_CODES else "E-DEVICE-MEMORY" if device.facts.is_gpu else "E-MEMORY"
    why = error.why or error.what
    return LimitExceeded("The training does not fit the memory.", why=why, do=f"{do}.", code=code)


def advice(shape: ModelShape, config: TrainerConfig, device: Device, available: int) -> list[str]:
    """Return what it takes now, and each single change that takes less, the greatest saving first."""
    hyper, now = config.hyperparameters, estimate_memory(shape, config, device).total
    changes: dict[str, dict[str, object]] = {
        **({"gradient_checkpointing: true": {"gradient_checkpointing": True}} if recomputes(config) else {}),
        f"max_length: {hyper.max_length // 2}": {"max_length": max(8, hyper.max_length // 2)},
        "batch_size: 1": {"batch_size": 1},
    }
    takes = {
        name: estimate_memory(
            shape, config.model_copy(update={"hyperparameters": hyper.model_copy(update=update)}), device
        )
        for name, update in changes.items()
    }
    less = sorted((memory.total, name) for name, memory in takes.items() if memory.total < now)
    need = f"Estimated are {now / GIB:.2f} GiB on {device}, {available / GIB:.2f} GiB are there"
    return [need, *(f"`{name}` takes {total / GIB:.2f} GiB" for total, name in less)]


def find_device_memory(config: TrainerConfig) -> tuple[Device, int]:
    """Where it trains, and the bytes that are there."""
    gpu = next((device for device in list_devices() if device.facts.is_gpu), None)
    if gpu is not None and config.device is not Device.CPU and (memory := device_memory(gpu)):
        return gpu, memory
    return Device.CPU, psutil.virtual_memory().available


def read_shape(base: str) -> ModelShape | None:
    path = Path(base) / "config.json"
    return ModelShape.from_config(orjson.loads(path.read_bytes())) if path.is_file() else None
