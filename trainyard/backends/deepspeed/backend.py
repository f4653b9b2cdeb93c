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
from trainyard.backends.foreign.reach import Limit, adapter_reasons, refused
from trainyard.backends.job import TrainingJob
from trainyard.backends.limits import outside_reach
from trainyard.backends.surroundings import environment
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.strategies import Strategy

PROGRAM = "trainyard.backends.deepspeed.program:train"
CODE = "R-DEEPSPEED"
ZERO_STAGES: dict[Strategy, int] = {
    Strategy.SINGLE: 0,
    Strategy.DDP: 0,
    Strategy.ZERO1: 1,
    Strategy.ZERO2: 2,
    Strategy.ZERO3: 3,
}
"""Strategy -> DeepSpeed's `zero_optimization.stage`."""
LAUNCHERS = ("auto", "torchrun", "deepspeed")


def probe(settings: Settings | None = None) -> Probe:
    return environments.probe(BackendName.DEEPSPEED, settings)


def reasons(job: TrainingJob) -> list[Reason]:
    """Every setting of the job that this backend does not carry out."""
    launch = job.config.launch
    limits = [
        Limit("launch.strategy", launch.strategy, tuple(ZERO_STAGES)),
        Limit("launch.launcher", launch.launcher, LAUNCHERS),
    ]
    return outside_reach(job, CODE) + refused(job, CODE, limits) + adapter_reasons(job, CODE)


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The conductor runs in our interpreter and starts the launcher of the tool's own below it."""
    return [sys.executable, "-m", "trainyard.compute.launch", PROGRAM, str(folder)]


__all__ = ["command", "environment", "probe", "reasons"]
