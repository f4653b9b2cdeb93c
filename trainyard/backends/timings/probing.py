"""A probe: ten steps of a training in a supervised child, on a device that is claimed as for any other training."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from trainyard.backends.base import run_training, work_folder
from trainyard.backends.job import PROBE_RUN, TrainingJob
from trainyard.backends.timings.records import add_timing
from trainyard.backends.timings.watching import TrainingClock, make_key
from trainyard.compute.child import LOG_FILE
from trainyard.compute.gpus import device_numbers
from trainyard.compute.lease import claim_devices, holder, slot_lock
from trainyard.compute.supervise import kernel_kills, ran_out_of_memory, read_tail
from trainyard.errors import TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.estimate.timing import Problem
from trainyard.spec.training import TrainerConfig

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
    for number in device_numbers():
        if (other := holder(slot_lock(settings, number))) is not None:
            say(f"device {number} is in use by {other}; the measurement may wait for it")
    with claim_devices(settings, job.config.launch.processes, run=job.run) as devices:
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
