"""The `mlx` backend, seen from the parent: SFT and continued pretraining with LoRA, DoRA or full weights by mlx-lm.

mlx is Apple's framework: Metal on their machines, and really computing on Linux CPUs. Imports neither mlx nor torch.
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

PROGRAM = "trainyard.backends.mlx.program:train"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.MLX, settings)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts mlx-lm in its own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
