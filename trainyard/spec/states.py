"""The states of a training job."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a training job stands; a detail in words stands beside it."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow; a failed job can be started again from its checkpoint."""
        return self in (JobState.COMPLETED, JobState.CANCELED)
