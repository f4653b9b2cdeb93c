"""The environment variables of every training child: fixed threads, no telemetry, a device for each process."""

from __future__ import annotations

import os
from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.job import TrainingJob


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
    several = job.config.launch.processes > 1
    variables |= {"CUDA_VISIBLE_DEVICES": "0"} | (launching.several(job) if several else {})
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        del variables["CUDA_VISIBLE_DEVICES"]  # whoever chose the devices keeps them
    return variables
