"""The step services, seen from the parent. Imports neither torch nor an SDK.

The child runs in Trainyard's interpreter and takes no device of this machine. The Tinker SDK's requirements resolve
with ours; the SDK of Together or Fireworks runs below the child, in an environment of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import ExternalProgram
from trainyard.errors import Reason
from trainyard.inherited import is_key_missing
from trainyard.settings import Settings

SDK = "tinker"
INSTALL = "pip install 'trainyard[tinker]'"


@dataclass(frozen=True)
class StepProgram(ExternalProgram):
    """A training whose passes a service computes."""

    @property
    def target(self) -> str:
        return "trainyard.backends.remote_steps.program:train"

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether the SDK is here; whether the service answers is known when it is called."""
        del settings  # the SDK is in Trainyard's own environment
        if importlib.util.find_spec(SDK) is None:
            return Probe(False, why=f"Not installed: {SDK}.", fix=f"Run `{INSTALL}`.")
        return Probe(True, version=importlib.metadata.version(SDK))

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """Return every reason why the service cannot carry out a job: its limits, a missing key, earlier weights."""
        reasons = super().reasons(job)
        variable = job.service.api_key_env if job.service is not None else None
        if is_key_missing(variable):
            because = f"The key of the {self.name.value} backend is not set: {variable} is empty here."
            instead = f"Set {variable} where the worker starts."
            reasons.append(Reason("R-ENDPOINT", job.node or None, "config.backend", because, instead))
        if job.adapter is not None:
            because = f"The {self.name.value} backend cannot continue an adapter of this machine."
            reasons.append(Reason("R-ADAPTER", job.node or None, "config.backend", because, "Use backend native."))
        return reasons

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """Return the variables of a child, without the SDK's reports on its own use."""
        return {**super().environment(job), "TINKER_TELEMETRY": "0"}


@dataclass(frozen=True)
class ChildStepProgram(StepProgram):
    """A training at a service whose SDK has an environment of its own."""

    def probe(self, settings: Settings | None = None) -> Probe:
        return environments.probe(self.name, settings)
