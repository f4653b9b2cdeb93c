"""Waiting for a backend: a job whose trainer is not installed is checked and recorded like any other, and waits.

It stays pending, says what to install, and `trainyard jobs resume` starts it. A chain is refused instead: its other
nodes would run for hours before the trainer is reported as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainyard.app.plan.resolve import examine_data
from trainyard.backends.base import probe
from trainyard.backends.manager import marker_only
from trainyard.errors import Reason, Refused, Unavailable
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.chain import ResolvedChain
from trainyard.spec.training import TrainerConfig

MISSING = "R-BACKEND-MISSING"


def refuse_all(_: Sequence[Reason]) -> bool:
    """Allow no run with too few rows."""
    return False


def refuse_or_wait(
    chain: ResolvedChain,
    settings: Settings,
    *,
    is_job: bool,
    allows: Callable[[Sequence[Reason]], bool] = refuse_all,
    read_data: bool = True,
) -> str:
    """Why a job has to wait: no trainer, and the command that installs it; empty if it, or a chain, can run.

    `allows` is asked about a run on too few rows (`E-FEW-ROWS`). Raises `Refused` with every reason when something
    else prevents the run.
    """
    reasons, shortages, _, _ = examine_data(chain, settings, read_data=read_data)
    if reasons and not (is_job and all(reason.code == MISSING for reason in reasons)):
        raise Refused(reasons)
    if shortages and not allows(shortages):
        raise Refused(shortages)
    trainers = [node.config.backend for node in chain.nodes if isinstance(node.config, TrainerConfig)]
    return absent(trainers, settings) if reasons else ""


def absent(backends: list[BackendName], settings: Settings) -> str:
    """Return why the first of these trainers that cannot be used here is missing; empty if all can be used."""
    found = [probe(name, settings) for name in backends]
    return next((marker_only(one) for one in found if not one.available), "")


def require_trainer(name: str, backend: BackendName, settings: Settings) -> None:
    """Raise `Unavailable` (`R-BACKEND-MISSING`) while a job that waits for its trainer would wait on."""
    if why := absent([backend], settings):
        raise Unavailable(
            f"The job {name} still waits for its trainer.", why=why, do="Install it, then resume again.", code=MISSING
        )
