"""The `deepspeed` backend, seen from the parent: SFT with full weights or LoRA over ZeRO-0 to ZeRO-3.

`launch.strategy` names the sharing: single and ddp are ZeRO-0 (every process holds everything), zero1 shares the state
of the optimizer, zero2 the gradients too, zero3 the weights as well (arXiv 1910.02054). Really runs on CPUs over gloo.
Imports no torch.
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

PROGRAM = "trainyard.backends.deepspeed.program:train"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.DEEPSPEED, settings)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the launcher of the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
