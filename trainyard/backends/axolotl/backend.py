"""The `axolotl` backend, seen from the parent: a YAML written from the job, and `axolotl train`. Imports no torch.

Axolotl is made for CUDA and ROCm. Tried on a CPU (axolotl 0.19.0, torch 2.13.0): it installs, validates and trains with
its LoRA kernels off, which ask for CUDA; so `device: cpu` is allowed, for trials and small models. 4-bit bases are not.

Rows are drawn in axolotl's own order. SFT rows come tokenised and labelled, so that its account is ours; preference
rows come as rendered text and are tokenised there.
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

PROGRAM = "trainyard.backends.axolotl.program:train"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.AXOLOTL, settings)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
