"""The `trl` backend, seen from the parent: what it can do, and the command that does it. Imports no torch."""

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

PROGRAM = "trainyard.backends.trl.program:train"
NEEDED = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")


def probe(_settings: Settings | None = None) -> Probe:
    """All its packages are dependencies of ours; a broken installation is reported all the same."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Probe(
            False, why=f"Not installed: {', '.join(missing)}.", fix="Run `make setup`, or install trainyard again."
        )
    return Probe(True, version=importlib.metadata.version("trl"))


def command(job: TrainingJob, folder: Path) -> list[str]:
    """The launcher enters the contract first, so a stop during the slow imports is already understood."""
    return launching.command(job, PROGRAM, folder)


__all__ = ["command", "environment", "probe", "reasons"]
