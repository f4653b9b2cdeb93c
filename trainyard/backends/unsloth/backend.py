"""The `unsloth` backend, seen from the parent: LoRA and QLoRA SFT by FastLanguageModel and TRL. Imports no torch.

Its kernels are for CUDA, where it is meant to be used; on a CPU it trains LoRA through the same calls without them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.foreign.reach import Limit, adapter_reasons, four_bit_reasons, refused
from trainyard.backends.job import TrainingJob
from trainyard.backends.limits import outside_reach
from trainyard.backends.surroundings import environment
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName

PROGRAM = "trainyard.backends.unsloth.program:train"
CODE = "R-UNSLOTH"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.UNSLOTH, settings)


def reasons(job: TrainingJob) -> list[Reason]:
    """Every setting of the job that this backend does not carry out."""
    found = outside_reach(job, CODE) + refused(
        job, CODE, [Limit("launch.processes", job.config.launch.processes, (1,))]
    )
    return found + four_bit_reasons(job, CODE) + adapter_reasons(job, CODE)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
