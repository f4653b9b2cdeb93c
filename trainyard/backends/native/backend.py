"""The `native` backend, seen from the parent: our own engine in `trainyard/train`. Imports no torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from trainyard.backends import launching
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.limits import reasons
from trainyard.backends.surroundings import environment
from trainyard.settings import Settings
from trainyard.spec.axes.strategies import Strategy

PROGRAM, SHARED_PROGRAM = "trainyard.backends.native.program:train", "trainyard.backends.native.ranks:train"
NEEDED = ("torch", "transformers", "peft", "safetensors")


def probe(_settings: Settings | None = None) -> Probe:
    """All its packages are dependencies of ours; a broken installation is reported all the same."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Probe(
            False, why=f"Not installed: {', '.join(missing)}.", fix="Run `make setup`, or install trainyard again."
        )
    return Probe(True, version=importlib.metadata.version("trainyard"))


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The launcher enters the contract first, so a stop during the slow imports is already understood."""
    several = job.config.launch.strategy is not Strategy.SINGLE
    return launching.command(job, SHARED_PROGRAM if several else PROGRAM, folder)


__all__ = ["command", "environment", "probe", "reasons"]
