"""The environment variables of every training child: fixed threads, no telemetry, a device for each process."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.job import TrainingJob
from trainyard.compute.gpus import HIDING_VARIABLE, visible_devices
from trainyard.inherited import cloud_variables
from trainyard.settings import settings


def environment(job: TrainingJob) -> dict[str, str]:
    """Threads fixed before torch is imported; no telemetry; no network where the base is a local folder."""
    threads = str(job.threads)
    variables = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "passive",  # spinning threads starve the server and the worker on a small machine
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    if Path(job.base).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if settings().may_mirror(job.config.engine.mirror or ""):
        variables |= cloud_variables()
    if job.config.launch.processes > 1:
        variables |= launching.several(job)
    return variables | seen_devices(job)


def seen_devices(job: TrainingJob) -> dict[str, str]:
    """The devices of the job, in the words of whoever chose among them; a choice that they are not part of stays."""
    count = job.config.launch.processes
    numbers = job.devices if len(job.devices) >= count else range(count)
    if HIDING_VARIABLE not in os.environ:
        return {HIDING_VARIABLE: ",".join(map(str, numbers))}
    named = visible_devices()
    return {HIDING_VARIABLE: ",".join(named[one] for one in numbers)} if set(numbers) <= set(named) else {}
