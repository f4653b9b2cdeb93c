"""The `native` backend, seen from the parent: the engine in `trainyard/train`. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import OwnProgram
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.strategies import Strategy

SHARED_PROGRAM = "trainyard.backends.native.ranks:train"


class NativeProgram(OwnProgram):
    """Rank 0 runs the program; the other ranks follow it."""

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """Return the command of one process, or of the launcher."""
        is_distributed = job.config.launch.strategy is not Strategy.SINGLE
        return launching.command(job, SHARED_PROGRAM if is_distributed else self.target, folder)


BACKEND = NativeProgram(BackendName.NATIVE, "trainyard", ("torch", "transformers", "peft", "safetensors"))
