"""The providers, seen from the parent. Imports no client.

The child runs in Trainyard's interpreter: the requirements of the clients resolve with ours. It takes no device.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import ExternalProgram
from trainyard.errors import Reason
from trainyard.inherited import is_key_missing
from trainyard.settings import Settings
from trainyard.spec.axes.providers import ProviderFacts

DISTRIBUTIONS = {"fireworks": "fireworks-ai", "google.auth": "google-auth"}
"""Package -> its distribution, where that has another name."""


@dataclass(frozen=True)
class Regions:
    """Where a provider trains: the variable that names the place, and the places that there are."""

    variable: str
    list_names: Callable[[], Collection[str]]
    newer: str
    """What to do for a place that is newer than this list."""


@dataclass(frozen=True)
class CloudProgram(ExternalProgram):
    """Training that runs at a provider."""

    regions: Regions | None = None

    @property
    def target(self) -> str:
        return "trainyard.backends.cloud.program:train"

    @property
    def provider(self) -> ProviderFacts:
        facts = self.name.facts.provider
        assert facts is not None, "a backend of this room"
        return facts

    def probe(self, settings: Settings | None = None) -> Probe:
        """Look whether the client is here; whether the provider answers is known when it is called."""
        del settings  # the client is in Trainyard's own environment
        parent = self.provider.package.partition(".")[0]
        if importlib.util.find_spec(parent) is None or importlib.util.find_spec(self.provider.package) is None:
            fix = f"Run `pip install 'trainyard[{self.provider.extra}]'`."
            return Probe(False, why=f"Not installed: {self.provider.package}.", fix=fix)
        package = DISTRIBUTIONS.get(self.provider.package, self.provider.package)
        return Probe(True, version=importlib.metadata.version(package))

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """Return every reason why the provider cannot carry out a job: its limits, a missing key, earlier weights."""
        reasons, node = super().reasons(job), job.node or None
        key = job.service.api_key_env if job.service is not None else None
        for variable in (*([key] if key else []), *self.provider.variables):
            if is_key_missing(variable):
                because = f"The {self.name.value} backend needs {variable}, which is empty here."
                reasons.append(
                    Reason("R-ENDPOINT", node, "config.backend", because, f"Set {variable} where the worker starts.")
                )
        reasons += self.find_region_reasons(job)
        if job.adapter is not None:
            because = f"The {self.name.value} backend cannot continue an adapter of this machine."
            reasons.append(Reason("R-ADAPTER", node, "config.backend", because, "Use backend native."))
        last = self.provider.last_day
        address = job.service.base_url if job.service is not None else ""
        if last is not None and not address and datetime.now(UTC).date() > last:
            because = f"{self.provider.title} takes no new jobs since {last}."
            instead = "Use backend together or fireworks, or another service with this wire in `service`."
            reasons.append(Reason("R-PROVIDER", node, "config.backend", because, instead))
        return reasons

    def find_region_reasons(self, job: TrainingJob) -> list[Reason]:
        """Return the reason why the region of the environment cannot train, where it is known here."""
        rule, address = self.regions, job.service.base_url if job.service is not None else ""
        region = os.environ.get(rule.variable, "") if rule is not None else ""
        if rule is None or not region or address or not self.probe().available:
            return []
        names = rule.list_names()
        if region in names:
            return []
        near = difflib.get_close_matches(region, names, 3, 0.5) or sorted(names)[:3]
        because = f"{self.provider.title} has no region {region!r} ({rule.variable}) that is known here."
        instead = (
            f"Set {rule.variable} to one of {len(names)}, such as {', '.join(near)}; for a newer one, {rule.newer}."
        )
        return [Reason("R-PROVIDER", job.node or None, "config.backend", because, instead)]

    def no_weights_reason(self) -> Reason:
        """Return the reason why nothing can be downloaded."""
        because = f"{self.provider.title} gives no weights out: the model is served there."
        return Reason("R-PROVIDER", None, "backend", because, "Use backend together, fireworks or hf_jobs.")

    def environment(self, job: TrainingJob) -> dict[str, str]:
        """Return the variables of a child: with the provider's own, and with the way to the Hub open."""
        names = (*self.provider.variables, *self.provider.optional)
        variables = {name: os.environ[name] for name in names if name in os.environ}
        return {**super().environment(job), "HF_HUB_OFFLINE": "0", **variables}
