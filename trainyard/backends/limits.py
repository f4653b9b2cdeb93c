"""What of a job its backend does not carry out, read from the same tables as the rows that refuse a chain."""

from __future__ import annotations

from trainyard.backends.job import TrainingJob
from trainyard.errors import Reason
from trainyard.spec.axes.devices import Device
from trainyard.spec.compat.tools import not_carried_out
from trainyard.spec.compat.training import BACKENDS


def outside_reach(job: TrainingJob, code: str) -> list[Reason]:
    """A reason for each of stage, method, device and setting outside the reach of the job's backend."""
    config, reach = job.config, BACKENDS[job.config.backend]
    axes = {"stage": reach.stages, "method": reach.methods, "device": (Device.AUTO, *reach.devices)}
    words = [
        {"setting": name, "name": name, "value": getattr(config, name), "do": f"Use {', '.join(allowed)}, or"}
        for name, allowed in axes.items()
        if getattr(config, name) not in allowed
    ]
    return [
        Reason(
            code,
            job.node or None,
            f"config.{one['setting']}",
            f"The {config.backend} backend does not carry out {one['name']} {one['value']}.",
            f"{one['do']} another backend.",
        )
        for one in [*words, *not_carried_out(config)]
    ]
