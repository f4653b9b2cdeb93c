"""The states of a training job."""

from __future__ import annotations

from enum import StrEnum

NO_TRAINER_DETAIL = "no trainer installed"
"""Detail of a pending job that waits until its trainer is installed: who watches it does not wait."""

NOT_DEPLOYED_DETAIL = "not deployed"
"""Detail of a completed run whose gate refused: its adapter is kept, and the live version stays live."""


class JobState(StrEnum):
    """The state of a training job; a detail in words comes with it."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        """Return whether nothing can follow; a failed job can be started again from its checkpoint."""
        return self in (JobState.COMPLETED, JobState.CANCELED)
