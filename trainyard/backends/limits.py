"""What of a job its backend does not support, from the function that refuses a chain. Most backends have no more."""

from __future__ import annotations

from trainyard.backends.job import TrainingJob
from trainyard.errors import Reason
from trainyard.spec.compat.backends import backend_reasons


def reasons(job: TrainingJob) -> list[Reason]:
    """Every reason why the backend of a job cannot carry it out, but for what only its program can know."""
    found = backend_reasons(job.config, job.node or None)
    if job.adapter is not None and job.config.adapter == "continue" and not job.config.method.facts.adapter:
        because = f"Method {job.config.method} trains whole weights and cannot continue an adapter."
        instead = "Use the method of the earlier trainer."
        found.append(Reason("R-ADAPTER-METHOD", job.node or None, "config.method", because, instead))
    return found
