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
from trainyard.backends.axolotl.config import LOSSES
from trainyard.backends.base import Probe
from trainyard.backends.foreign.reach import Limit, adapter_reasons, four_bit_reasons, refused
from trainyard.backends.job import TrainingJob
from trainyard.backends.limits import outside_reach
from trainyard.backends.surroundings import environment
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import Stage

PROGRAM = "trainyard.backends.axolotl.program:train"
CODE = "R-AXOLOTL"


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.AXOLOTL, settings)


def reasons(job: TrainingJob) -> list[Reason]:
    """Every setting of the job that this backend does not carry out."""
    config = job.config
    limits = [Limit("launch.processes", config.launch.processes, (1,))]
    if config.stage is Stage.DPO:
        limits.append(Limit("preference.loss", config.preference.loss, tuple(LOSSES)))
    found = outside_reach(job, CODE) + refused(job, CODE, limits)
    alpha = config.lora.alpha
    if alpha is not None and not float(alpha).is_integer():
        because = f"Axolotl takes whole numbers for lora_alpha, and alpha is {alpha}."
        found.append(Reason(CODE, job.node or None, "config.lora.alpha", because, f"alpha: {round(alpha)}."))
    return found + four_bit_reasons(job, CODE) + adapter_reasons(job, CODE)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
