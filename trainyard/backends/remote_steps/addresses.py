"""Where a step service answers, what it calls the base, and which key opens it.

A key comes from an environment variable, goes to an address that the operator names, and is in no spec, log or message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from trainyard.backends.job import TrainingJob
from trainyard.spec.axes.backends import BackendName

PREFIX = "tml-"
"""Without it the SDK takes no key."""
NO_KEY = f"{PREFIX}none"


@dataclass(frozen=True)
class ServiceAddress:
    """A service, as its client is opened."""

    base_url: str
    """Empty for the SDK's own."""
    model: str
    key: str = field(repr=False)
    is_operators: bool
    """Whether the operator names it, and not a chain."""


def find_address(job: TrainingJob) -> ServiceAddress:
    """Return the service of a job, with the key from this process's environment."""
    server = job.service
    assert server is not None, "prepare_job has located it"
    key = os.environ.get(server.api_key_env, "") if server.api_key_env else ""
    if job.config.backend is BackendName.REMOTE:
        key = key if not key or key.startswith(PREFIX) else f"{PREFIX}{key}"
    return ServiceAddress(server.base_url, server.model, key or NO_KEY, server.private_hosts is None)
