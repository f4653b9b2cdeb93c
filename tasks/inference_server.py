"""Steps of a night around its model server, as Prefect shows them."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from trainyard.night.phases import Night, boot, release
from trainyard.night.report import Phase1Report

STEP: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "log_prints": False}


@task(name="serve-model", **STEP)
def serve(night: Night, report: Phase1Report) -> Phase1Report:
    """Start the server and wait until it answers."""
    return boot(night, report)


@task(name="free-device", **STEP)
def free(night: Night, report: Phase1Report) -> Phase1Report:
    """Stop the server and prove by measured memory that the device is free."""
    return release(night, report)
