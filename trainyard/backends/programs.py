"""The parent's half of a backend: whether it is here, what it does not support, how its child is started.

A backend's `backend.py` makes one of these and overrides what is different there. Imports neither torch nor a tool.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from trainyard.backends import environments, launching
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.errors import Reason
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.compat.backends import backend_reasons


@dataclass(frozen=True)
class ExternalProgram:
    """A trainer below a supervised child of Trainyard, in its own environment."""

    name: BackendName

    @property
    def target(self) -> str:
        """`package.module:function` of the supervised child."""
        return f"trainyard.backends.{self.name.value}.program:train"

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether it can run here, without importing anything heavy."""
        return environments.probe(self.name, settings)

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """Return every reason why the backend of a job cannot carry it out, but for what only its program can know."""
        reasons = backend_reasons(job.config, job.node or None)
        if job.adapter is not None and job.config.adapter == "continue" and not job.config.method.facts.adapter:
            because = f"Method {job.config.method} trains whole weights and cannot continue an adapter."
            instead = "Use the method of the earlier trainer."
            reasons.append(Reason("R-ADAPTER", job.node or None, "config.method", because, instead))
        return reasons

    def command(self, _job: TrainingJob, folder: Path) -> list[str]:
        """The supervised child runs in our interpreter, and starts the tool's own below it."""
        return [sys.executable, "-P", "-m", "trainyard.compute.launch", self.target, str(folder)]

    def prepare(self, job: TrainingJob, folder: Path) -> None:
        """Its program reads `spec.json` alone."""

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """Return the variables that the program needs in addition to ours."""
        return launching.environment(job)


@dataclass(frozen=True)
class OwnProgram(ExternalProgram):
    """A trainer in Trainyard's interpreter, whose packages are dependencies of Trainyard; in one or more processes."""

    distribution: str
    """The package whose version is the trainer's version."""
    packages: tuple[str, ...]
    shared: str = ""
    """The child of a distributed training, where it is another."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """A broken installation is reported, too."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            fix = "Run `make setup`, or install trainyard again."
            return Probe(False, why=f"Not installed: {', '.join(missing)}.", fix=fix)
        return Probe(True, version=importlib.metadata.version(self.distribution))

    def command(self, job: TrainingJob, folder: Path) -> list[str]:
        """The launcher enters the contract first, so a stop during the slow imports is already understood."""
        is_single = job.config.launch.strategy is Strategy.SINGLE
        return launching.command(job, self.target if is_single else self.shared or self.target, folder)
