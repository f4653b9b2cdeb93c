"""Thresholds of a night as Prefect shows them."""

from __future__ import annotations

from prefect import task

from tasks.inference_server import STEP
from trainyard.night.phases import Night, threshold
from trainyard.night.report import BucketReport


@task(name="count-corpora", **STEP)
def count(night: Night) -> tuple[BucketReport, ...]:
    """Count every corpus, and leave a marker for each that is full."""
    return tuple(threshold(night, bucket) for bucket in night.config.in_order())
