"""The `unsloth` backend, seen from the parent: LoRA and QLoRA SFT by FastLanguageModel and TRL. Imports no torch.

Its kernels are for CUDA, where it is meant to be used; on a CPU it trains LoRA through the same calls without them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.limits import reasons
from trainyard.backends.surroundings import environment
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName

PROGRAM = "trainyard.backends.unsloth.program:train"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.UNSLOTH, settings)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
