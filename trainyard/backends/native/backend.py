"""The `native` backend, seen from the parent: our own engine in `trainyard/train`. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import OwnProgram
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.strategies import Strategy

SHARED_PROGRAM = "trainyard.backends.native.ranks:train"


class NativeProgram(OwnProgram):
    """Of several processes the first one runs the program, and the others follow it."""

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """One process, or a launcher of several."""
        several = job.config.launch.strategy is not Strategy.SINGLE
        return launching.command(job, SHARED_PROGRAM if several else self.target, folder)


BACKEND = NativeProgram(BackendName.NATIVE, "trainyard", ("torch", "transformers", "peft", "safetensors"))
