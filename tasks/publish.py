"""Phase 2 and the report of a night as Prefect shows them."""

from __future__ import annotations

from prefect import task

from tasks.inference_server import STEP
from trainyard.night.phases import Night, conclude, trainings
from trainyard.night.report import BucketReport, NightReport, Phase1Report, Phase2Report


@task(name="train-and-publish", **STEP)
def train(night: Night, first: Phase1Report, buckets: tuple[BucketReport, ...]) -> Phase2Report:
    """Take the markers, SFT first: train, judge, publish, deploy, complete."""
    return trainings(night, first, buckets)


@task(name="report-night", **STEP)
def report(night: Night, first: Phase1Report, second: Phase2Report) -> NightReport:
    """Write the night's report; from then on it is over."""
    return conclude(night, first, second)
